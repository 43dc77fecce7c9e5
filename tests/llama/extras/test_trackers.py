"""Weights & Biases and MLflow keep a resumed run as one run."""

import html
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
from wandb.proto import wandb_internal_pb2  # pyright: ignore[reportMissingImports]

from examples.llama import config, options
from tests.llama import tuned

PAIRS = "train.schedule=constant save_every=4 eval_every=4 sample_tokens=4 samples=[is,it]".split()
STEPS = 8


def python(*args: object, status: int = 0, **environment: str) -> str:
    """Run Python in a process of its own; what it prints."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "MLFLOW"))}
    given |= {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true"} | environment
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        env=given,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def settings(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    def make(name: str, *more: str) -> list[str]:
        usual = tuned.settings(made, tmp_path_factory.getbasetemp() / name, "text")
        return [*usual, f"data.tokenizer={made}", *PAIRS, *more]

    return make


@pytest.fixture(scope="module")
def run(settings: Callable[..., list[str]]) -> Path:
    """The folder of a run that made step 5 twice."""
    pairs = settings("run", "trackers=[wandb,mlflow]")
    folder = Path(config.read(pairs=pairs).folder)
    python("-m", "examples.llama", "fit", *pairs, "train.steps=5")
    shutil.rmtree(folder / "checkpoints" / "5")
    told = python("-m", "examples.llama", "fit", *pairs, f"train.steps={STEPS}")
    assert "4 of 8 steps are done" in told
    return folder


def metrics(folder: Path, key: str) -> dict[int, float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line[key] for line in lines if key in line}


def samples(folder: Path, step: int) -> str:
    lines = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    return "\n\n".join(line["text"] for line in lines if line["step"] == step)


def first_settings(folder: Path) -> dict[str, Any]:
    """Those of the first process, in plain form."""
    return options.plain(config.read(folder / "config.yaml", ["train.steps=5"]))


# -- Weights & Biases


def records(file: Path) -> Iterator[Any]:
    """The records of a file of wandb's: LevelDB's log format, after a header of 7 bytes."""
    data, at, record, block = file.read_bytes(), 7, b"", 1 << 15
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if (left := -at % block) and left < 7:
            at += left  # A block ends with fewer bytes than a header has.
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def of_kind(file: Path, kind: str) -> list[Any]:
    return [getattr(r, kind) for r in records(file) if r.WhichOneof("record_type") == kind]


def values(items: Any) -> dict[str, Any]:
    """Keys, or whole paths of keys, and their values."""
    return {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}


def test_wandb_keeps_a_resumed_run_as_one(run: Path) -> None:
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    number = json.loads((run / "trackers.json").read_text())["wandb"]
    begun = [record for file in files for record in of_kind(file, "run")]
    assert [(r.run_id, r.project, r.display_name) for r in begun] == [(number, "llama", "run")] * 2
    told = values(begun[0].config.update)
    assert {k: told[k] for k in told if k != "_wandb"} == first_settings(run)
    [metric] = of_kind(files[1], "metric")
    assert (metric.glob_name, metric.step_metric) == ("*", "step")

    parts = [[values(h.item) for h in of_kind(file, "history")] for file in files]
    for key in ("loss", "grad_norm", "lr", "tokens"):
        first, second = ({x["step"]: x[key] for x in part if key in x} for part in parts)
        assert list(first) == [1, 2, 3, 4, 5]
        assert list(second) == [5, 6, 7, 8]
        assert first | second == metrics(run, key)
    held_out = {x["step"]: x["held_out_loss"] for p in parts for x in p if "held_out_loss" in x}
    assert {step: held_out[step] for step in (4, 8)} == metrics(run, "held_out_loss")
    [shown] = [x for x in parts[1] if "samples.path" in x]
    text = (files[1].parent / "files" / shown["samples.path"]).read_text()
    assert shown["step"] == STEPS
    assert f"<pre>{html.escape(samples(run, STEPS))}</pre>" in text


def test_wandb_sync_would_upload_both_parts(run: Path) -> None:
    folders = sorted(run.glob("wandb/offline-run-*"))
    told = python("-m", "wandb", "sync", "--dry-run", *folders).split()
    assert [word for word in told if word.endswith(".wandb")] == [
        str(file) for folder in folders for file in folder.glob("*.wandb")
    ]


def test_wandb_without_a_key_is_reported(settings: Callable[..., list[str]]) -> None:
    how: Any = {"WANDB_MODE": "online", "HOME": "/nonexistent"}
    pairs = settings("none", "trackers=[wandb]")
    told = python("-m", "examples.llama", "fit", *pairs, status=2, **how)
    assert "error: trackers has wandb, which does not start (No API key configured." in told


# -- MLflow


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own, of sqlalchemy
def test_mlflow_keeps_a_resumed_run_as_one(run: Path) -> None:
    client = MlflowClient(f"sqlite:///{run}/mlflow.db")
    experiment = client.get_experiment_by_name("llama")
    assert experiment is not None
    [found] = client.search_runs([experiment.experiment_id])
    number = found.info.run_id
    assert number == json.loads((run / "trackers.json").read_text())["mlflow"]
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    settings = first_settings(run)
    assert found.data.params["train.steps"] == "5"
    assert found.data.params["train.model.vocab"] == "290"
    assert found.data.params["samples"] == str(settings["samples"])
    assert len(found.data.params) == count(settings)
    for key in ("loss", "grad_norm", "lr", "tokens"):
        history = client.get_metric_history(number, key)
        assert [m.step for m in history] == [1, 2, 3, 4, 5, 5, 6, 7, 8]
        assert {m.step: m.value for m in history} == metrics(run, key)
    held_out = {m.step: m.value for m in client.get_metric_history(number, "held_out_loss")}
    assert {step: held_out[step] for step in (4, 8)} == metrics(run, "held_out_loss")
    paths = [item.path for item in client.list_artifacts(number, "samples")]
    assert sorted(paths) == ["samples/4.txt", "samples/5.txt", "samples/8.txt"]
    local = client.download_artifacts(number, "samples/8.txt")
    assert Path(local).read_text() == samples(run, STEPS)


def count(settings: Any) -> int:
    return sum(map(count, settings.values())) if isinstance(settings, dict) else 1


def test_mlflow_resumes_run_in_chosen_store(tmp_path: Path) -> None:
    """In a store of the caller's choice, in the experiment that is named."""
    script = """
import sys
from pathlib import Path
from mlflow import MlflowClient
from examples.llama.train import trackers

folder, store = Path(sys.argv[1]), MlflowClient(sys.argv[2])
for first in (0, 3):
    [tracker] = trackers.begin(["mlflow"], folder, first, {"seed": first, "data": {"batch": 4}})
    [run] = store.search_runs([store.get_experiment_by_name("mine").experiment_id])
    print(run.info.status, sorted(run.data.params.items()))
    tracker.close()
"""
    store = f"sqlite:///{tmp_path}/all.db"
    how: Any = {"MLFLOW_TRACKING_URI": store, "MLFLOW_EXPERIMENT_NAME": "mine"}
    told = python("-c", script, tmp_path, store, **how)
    assert told.splitlines()[-2:] == ["RUNNING [('data.batch', '4'), ('seed', '0')]"] * 2
