"""The internals of checkpoints: saves that are complete when the run is killed."""

from pathlib import Path

import torch

from examples.llama.checkpoint.checkpoints import Checkpoints


def test_checkpoints_keep_after_kills_of_complete_saves(tmp_path: Path) -> None:
    killed = Checkpoints(tmp_path, keep=2)
    for step in range(1, 7):  # Each run is killed when its save is complete, and does no more.
        killed = Checkpoints(tmp_path, keep=2)
        killed.save(step, {"w": torch.ones(2)}, {})
        assert killed._pending is not None
        killed._pending.result()
        assert len(killed.steps()) <= 3
    assert killed.steps() == [4, 5, 6]
    with Checkpoints(tmp_path, keep=2) as last:
        last.save(7, {"w": torch.ones(2)}, {})
    assert last.steps() == [6, 7]
