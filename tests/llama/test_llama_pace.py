"""The share of the time that steps have, and the watchdog; all by a clock that tests set."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from examples.llama import config
from examples.llama.config import Run
from examples.llama.options import SettingError
from examples.llama.train import fit, pace
from examples.llama.train.metrics import Log
from examples.llama.train.pace import Pace, Watchdog


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def steps(found: Pace, clock: Clock, *seconds: float) -> None:
    for took in seconds:
        found.begin()
        clock.now += took
        found.end()


def test_goodput_counts_steps_alone() -> None:
    clock = Clock()
    found = Pace(clock)
    clock.now += 5  # loading
    steps(found, clock, 20)  # compilation
    assert found.goodput() is None
    steps(found, clock, 10, 10, 10)
    found.pause()
    clock.now += 15  # evaluation, and a checkpoint
    steps(found, clock, 10, 10)
    found.pause()
    clock.now += 10
    assert found.goodput() == (3 * 10 + 2 * 10) / (5 + 20 + 30 + 15 + 20 + 10)


def test_watchdog_tells_once_of_a_step_that_does_not_end() -> None:
    clock, told = Clock(), list[tuple[float, float]]()
    found = Pace(clock)
    dog = Watchdog(found, 20.0, lambda *late: told.append(late))
    found.begin()
    clock.now += 1e6  # compilation
    dog.look()
    found.end()
    steps(found, clock, 3, 100, 4, 5)  # Their median is 4.5.
    found.pause()
    clock.now += 1e6  # evaluation
    dog.look()
    found.begin()
    clock.now += 90.0
    dog.look()
    assert not told
    clock.now += 0.5
    dog.look()
    clock.now += 500.0
    dog.look()
    assert told == [(90.5, 4.5)]


def test_watchdog_waits_for_a_minute() -> None:
    clock, told = Clock(), list[tuple[float, float]]()
    found = Pace(clock)
    dog = Watchdog(found, 20.0, lambda *late: told.append(late))
    steps(found, clock, 9, 0.5, 0.5, 0.5)
    clock.now += 60.0
    dog.look()
    assert not told
    clock.now += 1.0
    dog.look()
    assert told == [(61.0, 0.5)]


def test_watchdog_thread_prints_threads_and_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pace, "OFTEN", 0.0)
    clock, told = Clock(), threading.Event()
    found = Pace(clock)
    steps(found, clock, 9, 1, 1, 1)
    console, run = Console(highlight=False, markup=False), Run(str(tmp_path), trackers=())
    with Log(run, run.train, 4, console, found) as log:

        def tell(seconds: float, usual: float) -> None:
            log.stuck(seconds, usual)
            told.set()

        with Watchdog(found, 20.0, tell):
            clock.now += 100.0
            assert told.wait(60)
    text = capsys.readouterr().out
    assert "no step has ended for 100 seconds since step 4, and the last ones took 1.00" in text
    assert "in test_watchdog_thread_prints_threads_and_logs" in text
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert line == {"step": 4, "stuck_seconds": 100.0}


def test_fit_says_what_share_went_into_steps(
    run_of: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    fit.fit(run_of("a", "train.steps=3", "watchdog=null"))
    assert "% of the time went into steps)" in capsys.readouterr().out
    with pytest.raises(SettingError, match=r"watchdog is 1\.0: use a number above 1, or null"):
        config.read(pairs=["watchdog=1"])
