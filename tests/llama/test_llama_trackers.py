"""Runs report to trackers."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from examples.llama.config import Run
from examples.llama.options import SettingError
from examples.llama.train import fit, trackers

VALUES = {"loss": 2.5, "lr": 0.1}


class WandbRun(list[Any]):
    """Notes what it is told, in the place of a run of wandb's."""

    def __enter__(self) -> "WandbRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.append("finish")

    def define_metric(self, name: str, step_metric: str) -> None:
        self.append((name, step_metric))

    def log(self, values: dict[str, float]) -> None:
        self.append(values)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A module in the place of wandb's, that notes how runs begin, and what they are told."""
    begun: list[Any] = []

    def init(**how: Any) -> WandbRun:
        begun.append((how, WandbRun()))
        return begun[-1][1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # type: ignore[arg-type]
    return begun


def test_wandb_resumed_run_keeps_its_id(wandb: list[Any], tmp_path: Path) -> None:
    for first in (0, 5):
        with contextlib.ExitStack() as stack:
            [report] = trackers.begin(["wandb"], tmp_path, first, {"seed": 3}, stack)
            report(first + 1, VALUES)
    (how, told), (again, _) = wandb
    assert how["id"] == again["id"]
    assert (how["resume"], how["config"], how["dir"]) == ("allow", {"seed": 3}, tmp_path)
    assert told == [("*", "step"), {"step": 1, **VALUES}, "finish"]
    with contextlib.ExitStack() as stack:
        trackers.begin(["wandb"], tmp_path.parent, 0, {}, stack)
    assert wandb[2][0]["id"] != how["id"]


def test_trackers_begin_not_installed_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    message = r"trackers has wandb, which is not installed \(.*wandb.*\): mend that, or remove it"
    with contextlib.ExitStack() as stack, pytest.raises(SettingError, match=message):
        trackers.begin(["wandb"], tmp_path, 0, {}, stack)


def test_fit_with_tracker_that_does_not_start_ends(
    settings: Callable[..., list[str]],
    command: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No step is made."""

    class UsageError(Exception):
        pass

    def init(**how: Any) -> None:
        raise UsageError("no API key")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # type: ignore[arg-type]
    status, told = command("fit", *settings("a", "trackers=[tensorboard,wandb]"))
    assert status == 2
    assert "error: trackers has wandb, which does not start (no API key): mend that, or" in told
    status, told = command("fit", *settings("a", "trackers=[tensorbord]"))
    assert status == 2
    assert "error: trackers has 'tensorbord': use some of tensorboard, wandb\n" in told


def test_fit_reports_to_trackers(
    run_of: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One of a program's own can be added. If it fails, that is told once, and training goes on."""
    run = run_of("a", "train.steps=3", "eval_every=2")
    assert fit.fit(run).ended == "done"
    board = EventAccumulator(str(Path(run.folder, "tensorboard"))).Reload()
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3]
    assert [event.step for event in board.Scalars("held_out_loss")] == [2, 3]
    fit.fit(run_of("a", "train.steps=4"))
    board = EventAccumulator(str(Path(run.folder, "tensorboard"))).Reload()
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3, 4]

    @contextlib.contextmanager
    def mine(folder: Path, first: int, settings: Mapping[str, Any]) -> Iterator[trackers.Report]:
        def report(step: int, values: Mapping[str, float]) -> None:
            raise ConnectionResetError("no network")

        yield report

    monkeypatch.setitem(trackers.TRACKERS, "mine", mine)
    capsys.readouterr()
    assert fit.fit(run_of("b", "trackers=mine", "train.steps=3")).ended == "done"
    printed = capsys.readouterr().out
    assert printed.count("metrics are not written, but training continues: no network") == 1
