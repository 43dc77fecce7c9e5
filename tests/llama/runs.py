"""What a short run of the training program has written: see `settings` in `conftest.py`."""

import json
from pathlib import Path
from typing import Any

import torch

import xfunc as xf
from examples.llama import train
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.config import Run

STEPS = 8  # of the runs of `settings`
CURVE = ("step", "loss", "grad_norm", "lr", "tokens", "skipped", "held_out_loss")


def lines(run: Run) -> list[dict[str, Any]]:
    file = Path(run.folder, "metrics.jsonl")
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def curve(run: Run) -> list[dict[str, Any]]:
    """What must not depend on time."""
    return [{k: line[k] for k in CURVE if k in line} for line in lines(run)]


def losses(run: Run) -> list[Any]:
    return [line["loss"] for line in lines(run) if "loss" in line]


def saved(run: Run, step: int | None = None) -> Any:
    """The state in a checkpoint, on the host."""
    target = train.abstract_state(run.recipe(1))
    found = Checkpoints(Path(run.folder, "checkpoints")).restore(target, step)
    return xf.device_get(found.state)


def assert_equal(a: Any, b: Any) -> None:
    xf.tree.map(lambda x, y: torch.testing.assert_close(x, y, rtol=0.0, atol=0.0), a, b)
