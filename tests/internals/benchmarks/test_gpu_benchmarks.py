"""What `benchmarks.gpu` exports, run on the CPU by the other backend: tiny steps and operations."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.dynamic import setting
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import lengths, llama
from benchmarks.gpu import operations as gpu
from benchmarks.operations import Finding, Unit, entries
from examples.llama import model

pytestmark = pytest.mark.usefixtures("pjrt")

CONFIG = model.Config(512, 16, 32, layers=1, heads=2, kv_heads=2)


def test_llama_step_matches_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model.CONFIGS, "minute", CONFIG)
    for name, value in {"MODEL": "minute", "SEQ": 8, "ROWS": 2}.items():
        monkeypatch.setattr(llama, name, value)
    plan = llama.Plan("full", "blockwise", loss_chunk=8)
    monkeypatch.setattr(llama, "PLANS", {"blockwise": plan})
    # In float32 and with large steps, so that a wrong update shows in the next loss. The norms of
    # gradients are 3.0, 2.1, 1.7: only the first two are clipped.
    made = dataclasses.replace(llama.recipe(plan), precision="float32", peak_lr=0.02, clip=2.0)
    monkeypatch.setattr(llama, "recipe", lambda plan: made)
    llama.export(tmp_path)
    step, _ = llama.ours(tmp_path, "blockwise")
    tokens = llama.batch().long()
    in_torch = llama.torch_step(made, lambda f: f)
    losses = [[step(), in_torch(tokens[:, :-1], tokens[:, 1:])] for _ in range(6)]
    ours, want = torch.tensor(losses).T
    torch.testing.assert_close(ours, want, rtol=1e-4, atol=0)
    assert want[-1] < 0.8 * want[0], "Else the losses say little of the weights."


@pytest.mark.slow
def test_llama_steps_dynamic_and_padded_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The padded step and that for all lengths train alike."""
    monkeypatch.setattr(setting, "lengths", lambda n: [5, 7, 16, 3][:n])
    for name, value in {"CONFIG": CONFIG, "ROWS": (2,), "CAP": 16, "BATCHES": 2}.items():
        monkeypatch.setattr(lengths, name, value)
    lengths.export(tmp_path)
    dynamic, padded = (lengths._ours(tmp_path, 2, way) for way in ("dynamic", "padded"))
    for batch in lengths.batches(2):
        both = torch.tensor([dynamic.step(batch), padded.step(batch)])
        torch.testing.assert_close(*both, rtol=1e-3, atol=0)
    assert (dynamic.programs(), padded.programs()) == (2, 1)


def judged(programs: list[gpu.Program], name: str) -> list[Finding]:
    unit = Unit(name, "float32", tuple(t for p in programs for t in p.transforms), 1)
    return gpu.examine(programs, entries()[name], unit)


def test_gpu_run_without_programs_or_gpu_exits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["", "run", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match=r"none has no programs of demo: export .*none demo"):
        command.main()
    for name in ("demo.xz", "operations.xz"):
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "argv", ["", "run", str(tmp_path), "demo", "operations"])
    with pytest.raises(SystemExit, match="demo: torch finds no GPU here; only operations"):
        command.main()
    assert command.missing(tmp_path, ["operations"]) is None


@pytest.mark.slow
def test_gpu_operations_judged_right_wrong_or_refused(tmp_path: Path) -> None:
    gpu.export(tmp_path, ["maximum", "minimum", "nonzero"])
    kept = gpu.read(tmp_path)
    one, other, found = (kept[n, "float32"] for n in ("maximum", "minimum", "nonzero"))
    assert [(f.transform, f.status) for f in judged(one, "maximum")] == [
        (t, "right") for t in gpu.UNDER
    ]
    assert {f.status for f in judged(found, "nonzero")} == {"refused"}
    one[0].made = other[0].made
    assert {f.status for f in judged(one, "maximum")} == {"wrong"}
    one[0].sample = ""
    assert {f.detail for f in judged(one, "maximum")} == {
        "this release of torch draws another sample"
    }
