"""The exported steps that `benchmarks.gpu` measures, tiny and on the CPU."""

from __future__ import annotations

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
    llama.export(tmp_path)
    step, _ = llama.ours(tmp_path, "blockwise")
    first, *_, last = [step() for _ in range(5)]
    assert last < first


@pytest.mark.sampled(7)
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
