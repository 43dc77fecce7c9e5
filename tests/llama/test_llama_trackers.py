"""Runs log to trackers and write samples; curves of several runs are drawn."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from examples.llama.config import Run
from examples.llama.options import SettingError
from examples.llama.tools import curves
from examples.llama.train import fit, trackers

VALUES = {"loss": 2.5, "lr": 0.1}


class Calls(list[Any]):
    """Notes calls of any method."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.append((name, args, kwargs))


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A module in the place of wandb's, that notes what it is told."""
    begun: list[Any] = []

    def init(**how: Any) -> Calls:
        begun.append((how, Calls()))
        return begun[-1][1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Html=str))  # type: ignore[arg-type]
    return begun


def test_wandb_resumed_run_keeps_its_id(wandb: list[Any], tmp_path: Path) -> None:
    for first in (0, 5):
        [tracker] = trackers.begin(["wandb"], tmp_path, first, {"seed": 3})
        tracker.scalars(first + 1, VALUES)
        tracker.text(first + 1, "samples", "a < b")
        tracker.close()
    (how, calls), (again, _) = wandb
    assert how["id"] == again["id"]
    assert (how["resume"], how["config"], how["dir"]) == ("allow", {"seed": 3}, tmp_path)
    assert [name for name, *_ in calls] == ["define_metric", "log", "log", "finish"]
    assert calls[1][1] == ({"step": 1, **VALUES},)
    assert calls[2][1] == ({"step": 1, "samples": "<pre>a &lt; b</pre>"},)
    trackers.begin(["wandb"], tmp_path.parent, 0, {})
    assert wandb[2][0]["id"] != how["id"]


def test_mlflow_resumed_run_keeps_its_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls, places = Calls(), []
    run = SimpleNamespace(info=SimpleNamespace(run_id="r7"))

    class Client:
        def __init__(self, place: str):
            places.append(place)

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str, artifact_location: str) -> str:
            assert artifact_location == (tmp_path / "mlflow").as_uri()
            return "e1"

        def create_run(self, number: str, run_name: str) -> Any:
            calls.append(("create_run", (number, run_name), {}))
            return run

        def __getattr__(self, name: str) -> Any:
            return getattr(calls, name)

    entities = SimpleNamespace(
        Metric=lambda key, value, now, step: (key, value, step), Param=lambda key, x: (key, x)
    )
    settings = {"seed": 3, "data": {"batch": 4}, **{f"other{i}": i for i in range(120)}}
    module: Any = SimpleNamespace(MlflowClient=Client, entities=entities)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    for first in (0, 5):
        [tracker] = trackers.begin(["mlflow"], tmp_path, first, settings)
        tracker.scalars(first + 1, VALUES)
        tracker.close()
    assert places == [f"sqlite:///{tmp_path}/mlflow.db"] * 2
    names = "create_run log_batch log_batch " + "update_run log_batch set_terminated " * 2
    assert [name for name, *_ in calls] == names.split()
    assert [len(kept["params"]) for *_, kept in calls[1:3]] == [100, 22]
    assert calls[1][2]["params"][:3] == [("seed", "3"), ("data.batch", "4"), ("other0", "0")]
    assert calls[3][1:] == (("r7",), {"status": "RUNNING"})
    assert calls[4][1:] == (("r7",), {"metrics": [("loss", 2.5, 1), ("lr", 0.1, 1)]})


def test_trackers_begin_not_installed_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    message = r"trackers has wandb, which is not installed \(.*wandb.*\): install it with pip, or"
    with pytest.raises(SettingError, match=message):
        trackers.begin(["wandb"], tmp_path, 0, {})


def test_fit_with_tracker_that_does_not_start_ends(
    settings: Callable[..., list[str]],
    command: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No step is made; what other trackers hold is released."""

    class UsageError(Exception):
        pass

    def init(**how: Any) -> None:
        raise UsageError("no API key")

    closed: list[bool] = []
    monkeypatch.setattr(trackers.TensorBoard, "close", lambda self: closed.append(True))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # type: ignore[arg-type]
    status, told = command("fit", *settings("a", "trackers=[tensorboard,wandb]"))
    assert status == 2
    assert "error: trackers has wandb, which does not start (no API key): fix that, or rem" in told
    assert closed == [True]
    status, told = command("fit", *settings("a", "trackers=[tensorbord]"))
    assert (status, told) == (
        2,
        "error: trackers[0] is 'tensorbord': did you mean tensorboard?\n",
    )


@pytest.mark.slow
def test_fit_logs_to_trackers_and_writes_samples(
    run_of: Callable[..., Run],
    wandb: list[Any],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """A tracker that fails is told of once, and does not end the run."""
    run = run_of(
        "a", "trackers=[wandb,tensorboard]", "samples=['the cat', 'dog']", "sample_tokens=5"
    )
    assert fit.fit(run).ended == "done"
    told = [
        json.loads(line)
        for line in Path(run.folder, "samples.jsonl").read_text("utf-8").splitlines()
    ]
    assert [(t["step"], t["text"][:3]) for t in told] == [
        (4, "the"),
        (4, "dog"),
        (8, "the"),
        (8, "dog"),
    ]
    [(_, calls)] = wandb
    logged = [args[0] for name, args, _ in calls if name == "log"]
    assert [x["step"] for x in logged if "loss" in x] == [*range(1, 9)]
    assert [x["step"] for x in logged if "held_out_loss" in x] == [4, 8]
    texts = [x["samples"] for x in logged if "samples" in x]
    assert len(texts) == 2
    assert told[3]["text"] in texts[1]
    board = EventAccumulator(str(Path(run.folder, "tensorboard"))).Reload()
    assert [event.step for event in board.Scalars("loss")] == [*range(1, 9)]
    assert [event.step for event in board.Tensors("samples/text_summary")] == [4, 8]
    capsys.readouterr()

    def fails(*args: Any, **kwargs: Any) -> None:
        raise ConnectionResetError("no network")

    sys.modules["wandb"].init = lambda **how: SimpleNamespace(  # type: ignore[attr-defined]
        define_metric=lambda *a, **k: None, log=fails, finish=fails
    )
    more = run_of("b", "trackers=wandb", "train.steps=3")
    assert fit.fit(more).ended == "done"
    printed = capsys.readouterr().out
    assert printed.count("metrics are not written, but training continues: no network") == 1
    assert len(curves.read(Path(more.folder)).losses) == 3

    # Both in one picture.
    curves.draw([Path(run.folder), Path(more.folder)], tmp_path / "both.png")
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_curves_read_and_draw(tmp_path: Path) -> None:
    lines = [{"step": i, "loss": 4.0 / i} for i in range(1, 5)] + [{"step": 5, "loss": None}]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"step": 4, "held_out_loss": 1.5}])
    (tmp_path / "metrics.jsonl").write_text(f'{text}[1]\n{{"step": 6, "lo', "utf-8")
    found = curves.read(tmp_path)
    assert found == (tmp_path.name, [1, 2, 3, 4], [4.0, 2.0, 4 / 3, 1.0], [4], [1.5])
    assert curves.smoothed([3.0, 3.0]) == pytest.approx([3.0, 3.0])
    assert curves.smoothed([0.0, 1.0])[1] == pytest.approx(1 / 1.98)
    with pytest.raises(SettingError, match=r"curves\.nothing: Format 'nothing' is not supported"):
        curves.draw([tmp_path], tmp_path / "curves.nothing")
    with pytest.raises(SettingError, match=r"there is no .*: give the folder of a run"):
        curves.read(tmp_path / "none")
    (tmp_path / "metrics.jsonl").write_text("{}\n", "utf-8")
    with pytest.raises(SettingError, match="has no losses: the run has made no steps"):
        curves.read(tmp_path)
