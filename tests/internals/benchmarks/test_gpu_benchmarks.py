"""The exported steps that `benchmarks.gpu` measures, tiny and on the CPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from benchmarks.dynamic import setting
from benchmarks.gpu import lengths, llama
from examples.llama import model

CONFIG = model.Config(512, 16, 32, layers=1, heads=2, kv_heads=2)


def test_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pjrt: None) -> None:
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


@pytest.mark.sample(7, seed=0)
def test_steps_for_many_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pjrt: None
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
