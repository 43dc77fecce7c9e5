"""Bad steps in `examples.llama.train.fit`: when it gives up, and its message."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

import xfunc as xf
from examples.llama import train
from examples.llama.config import Run
from examples.llama.train import fit, steps
from tests.llama import interrupted
from tests.llama.runs import saved


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return functools.partial(interrupted.poison, monkeypatch)


def test_fit_ends_after_too_many_bad_steps(
    run_of: Callable[..., Run], poison: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(2, 4, 5)
    monkeypatch.setattr(fit, "_HOPELESS", 2)
    run = run_of("a", "eval_every=100", "save_every=100")
    assert fit.fit(run) == fit.Outcome(6, None, "bad")
    assert saved(run).step == 3


def test_fit_reports_skipped_steps(
    run_of: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gradient = train.gradient

    def poisoned(params: Any, batch: Any, recipe: train.Recipe, *more: None) -> Any:
        return xf.tree.map(lambda x: x * math.inf, gradient(params, batch, recipe, *more))

    monkeypatch.setattr(steps, "gradient", poisoned)
    monkeypatch.setattr(fit, "_HOPELESS", 3)
    xf.clear_caches()
    assert fit.fit(run_of("a", "save_every=100", "eval_every=100")).ended == "bad"
    told = capsys.readouterr().out
    assert "step 1 is skipped: loss inf, gradient norm " in told
    assert "The last 3 steps were all bad and were skipped" in told
    assert "step 2: remove the checkpoints from there on" in told
    assert "on_bad=skip" not in told
    xf.clear_caches()
