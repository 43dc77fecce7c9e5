"""The commands, one after the other, with checkpoints of several files."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from examples.llama import __main__ as program
from examples.llama import config
from examples.llama.data.reader import Reader
from examples.llama.model import Batch
from tests.llama.hugging_face import theirs
from tests.llama.runs import STEPS
from xfunc.sharding import storage


@torch.no_grad()
def loss_of_transformers(folder: Path, batch: Batch) -> float:
    """The mean loss of the targets, of each document of a row by itself."""
    model, total, count = theirs(folder), 0.0, 0
    rows: list[Any] = list(batch)
    for tokens, targets, segments in zip(*rows, strict=True):
        for number in segments.unique():
            own = segments == number
            logits = model(tokens[own][None].long()).logits[0]
            total += F.cross_entropy(logits, targets[own].long(), reduction="sum").item()
            count += int((targets[own] >= 0).sum())
    return total / count


@pytest.mark.slow
def test_commands_end_to_end(
    settings: Callable[..., list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def command(*args: Any) -> str:
        assert program.main([*map(str, args)]) == 0
        return capsys.readouterr().out

    monkeypatch.setattr(storage, "FULL", 1)
    run, hub, again = tmp_path / "run", tmp_path / "hub", tmp_path / "again"
    printed = command("fit", *settings("run"))
    assert f"finished at step {STEPS}, which is saved" in printed
    told = command("eval", run)
    assert told.startswith(f"step {STEPS} of {run}: held-out loss ")
    loss = told.split("held-out loss ")[1]
    assert f"step {STEPS}: held-out loss {loss.split(',')[0]}\n" in printed
    assert command("eval", run, "--step", 4).split("held-out loss ")[1] != loss

    # What the optimizer has is not read: it may be anything.
    [optimizer] = (run / "checkpoints" / str(STEPS)).glob("__0_1.distcp")
    optimizer.write_bytes(bytes(optimizer.stat().st_size))
    assert command("eval", run) == told

    assert command("export-hf", run, "--out", hub) == f"step {STEPS} of {run} is in {hub}\n"
    assert command("eval", hub, *settings("other")) == f"{hub}: held-out loss {loss}"

    start = ["--prompt", "the cat", "--new", 5, "--temperature", 0]
    assert command("generate", run, *start).startswith("the cat")
    assert command("generate", run, *start) == command("generate", hub, *start)
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\n"))
    assert command("generate", run, *start[2:]) == command("generate", run, *start)

    told = command("import-hf", hub, *settings("again", "train.steps=2", "train.warmup=1"))
    assert f"fit --config {again}/config.yaml" in told
    command("fit", "--config", again / "config.yaml")
    imported = [json.loads(line) for line in (again / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in imported] == [1, 2, 2]
    data = config.read(again / "config.yaml").data
    expected = loss_of_transformers(hub, Reader(data, again).batch(0))
    assert imported[0]["loss"] == pytest.approx(expected, abs=2e-3)  # in bfloat16
    assert command("eval", again, "--step", 0).endswith(f"held-out loss {loss}")
