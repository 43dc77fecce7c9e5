"""What `benchmarks.gpu` runs, on the CPU: tiny steps and operations."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import lengths, llama
from benchmarks.gpu import operations as gpu
from benchmarks.operations import Unit, entries
from benchmarks.operations.cases import Case, samples_of

pytestmark = pytest.mark.usefixtures("pjrt")


def test_llama_step_matches_torch() -> None:
    plan = llama.Plan("full", "blockwise", loss_chunk=8)
    # In float32 and with large steps, so that a wrong update shows in the next loss. The norms of
    # gradients are 3.0, 2.1, 1.7: only the first two are clipped.
    made = llama.recipe(dataclasses.replace(llama.SMALL.model, tied=False), plan)
    made = dataclasses.replace(made, precision="float32", peak_lr=0.02, clip=2.0)
    tokens = llama.batch(llama.SMALL)
    step, in_torch = llama.ours(made, tokens), llama.torch_step(made, lambda f: f)
    tokens = tokens.long()
    losses = [[step(), in_torch(tokens[:, :-1], tokens[:, 1:])] for _ in range(6)]
    ours, want = torch.tensor(losses).T
    torch.testing.assert_close(ours, want, rtol=1e-4, atol=0)
    assert want[-1] < 0.8 * want[0], "Else the losses say little of the weights."


@pytest.mark.slow
def test_llama_steps_dynamic_and_padded_agree() -> None:
    """The padded step and that for all lengths train alike."""
    given = lengths.batches(lengths.SMALL, 2)
    dynamic, padded = (lengths.ours(lengths.SMALL, given, way) for way in ("dynamic", "padded"))
    for batch in given:
        both = torch.tensor([dynamic.step(batch), padded.step(batch)])
        torch.testing.assert_close(*both, rtol=1e-3, atol=0)
    assert (dynamic.programs(), padded.programs()) == (2, 1)


def test_gpu_run_without_gpu_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["", "demo", "operations"])
    with pytest.raises(SystemExit, match="torch finds no GPU here; --small needs none"):
        command.main()


@pytest.mark.slow
def test_gpu_operations_judged_right_wrong_or_refused() -> None:
    one, found = entries()["maximum"], entries()["nonzero"]
    right = gpu.examine(one, Unit("maximum", "float32", gpu.UNDER, 1))
    assert [(f.transform, f.status) for f in right] == [(t, "right") for t in gpu.UNDER]
    refused = gpu.examine(found, Unit("nonzero", "float32", ("jit", "vmap"), 1))
    assert {f.status for f in refused} <= {"refused", "absent"}
    [sample] = samples_of(one, torch.float32, 1)
    case = Case(one, sample)
    wrong = gpu.run.results(Case(entries()["minimum"], sample), ("jit",))["jit"][1]
    assert gpu.judged(one, sample, case, "jit", wrong)[0] == "wrong"
