"""Runs of the training program that are disturbed at a step, or end there."""

from collections.abc import Callable
from typing import Any

import pytest

from examples.llama import fit, train
from examples.llama.config import Run


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

    monkeypatch.setattr(train, "train_step", patched)


def killed_at_step(number: int, run: Run) -> None:
    """Make a run, until it is killed just before a step."""

    def kill() -> None:
        raise Killed(f"at step {number}")

    with pytest.MonkeyPatch.context() as patch:
        at_step(number, kill, patch)
        with pytest.raises(Killed, match=f"^at step {number}$"):
            fit.fit(run)
