"""Runs of the training program that are disturbed at a step, or end there."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import train
from examples.llama.config import Run
from examples.llama.data.reader import Reader
from examples.llama.train import fit
from examples.llama.train import steps as compiled


class Killed(Exception):
    """Stands for `kill -9`."""


def at_step(number: int, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something just before a step of the next run, counted from 1."""
    step, seen = train.train_step, []

    def patched(*args: Any, **kwargs: Any) -> Any:
        seen.append(None)
        if len(seen) == number:
            action()
        return step(*args, **kwargs)

    monkeypatch.setattr(compiled, "train_step", patched)


def killed_at_step(number: int, run: Run) -> None:
    """Make a run, until it is killed just before a step."""

    def kill() -> None:
        raise Killed(f"at step {number}")

    with pytest.MonkeyPatch.context() as patch:
        at_step(number, kill, patch)
        with pytest.raises(Killed, match=f"^at step {number}$"):
            fit.fit(run)


def poison(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Make the loss and the gradient of some steps, counted from 1, not a number."""
    gradient, read = train.gradient, Reader.batch

    def poisoned(params: Any, batch: Any, recipe: train.Recipe, *more: None) -> Any:
        nan = torch.where((batch.tokens == 0).all(), math.nan, 1.0)
        return xf.tree.map(lambda x: x * nan, gradient(params, batch, recipe, *more))

    def batch(self: Reader, step: int) -> Any:
        found = read(self, step)
        bad = step + 1 in steps
        return found._replace(tokens=torch.zeros_like(found.tokens)) if bad else found

    monkeypatch.setattr(compiled, "gradient", poisoned)
    monkeypatch.setattr(Reader, "batch", batch)
    xf.clear_caches()
