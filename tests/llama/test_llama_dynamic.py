"""`data.dynamic`: rows of one document each, batches of rows of similar length, exact steps."""

import dataclasses
import io
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import xfunc as xf
from examples.llama import config, train
from examples.llama.data import packing
from examples.llama.data.corpus import Part
from examples.llama.data.documents import DataError
from examples.llama.data.length_batches import ByLength
from examples.llama.data.reader import DataChangedError, DataConfig, Reader
from examples.llama.model import IGNORE
from examples.llama.train import fit

SIZES = [1, 2, 3, 40, 17, 5, 9, 90, 33, 4, 12, 64, 2, 7]


def part() -> Part:
    ends = np.cumsum(SIZES)
    return Part(np.arange(ends[-1], dtype=np.uint16), ends)


def test_by_length_epoch_has_each_target_once() -> None:
    rows = ByLength(part(), 32, 2, seed=0)
    learned, places = [], 0
    for k in range(0, rows.rows, 2):
        tokens, targets = rows.batch(1, np.arange(k, min(k + 2, rows.rows)))
        assert tokens.shape[1] <= 32
        places += tokens.size
        for row, target in zip(tokens, targets, strict=True):
            found = target[target != IGNORE]
            assert (found == row[: len(found)] + 1).all()  # Tokens count from 0 here.
            learned += found.tolist()
    firsts = {0, *np.cumsum(SIZES).tolist()}
    assert sorted(learned) == sorted(set(range(sum(SIZES))) - firsts)
    assert places <= 1.2 * sum(SIZES)
    again = rows.batch(1, np.arange(2))
    assert all((a == b).all() for a, b in zip(again, rows.batch(1, np.arange(2)), strict=True))
    assert max(rows.widths()) == 32
    assert any(
        a.shape != b.shape or (a != b).any()
        for a, b in zip(rows.batch(0, np.arange(2)), again, strict=True)
    )


def test_by_length_learns_answers_only() -> None:
    known = part()
    learned = np.arange(len(known.tokens)) % 2 == 0
    _, targets = ByLength(known._replace(learned=learned), 32, 4, 0).batch(0, np.arange(4))
    found = targets[targets != IGNORE]
    assert len(found)
    assert not (found % 2).any()


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    rng = random.Random(0)
    file = tmp_path / "lines.jsonl"
    words = ["one ", "two ", "three ", "is ", "more ", "than "]
    texts = ["".join(rng.choices(words, k=rng.randint(1, 30))) for _ in range(200)]
    file.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return file


@pytest.fixture
def run_on(documents: Path, tmp_path: Path) -> Any:
    def make(name: str, *pairs: str) -> config.Run:
        base = (
            f"folder={tmp_path / name} data.files={documents} data.cache={tmp_path / 'cache'} "
            "data.vocab=300 train.model=tiny train.model.vocab=300 data.batch=4 data.seq=48 "
            "data.dynamic=true train.steps=4 train.warmup=2 train.precision=float32 "
            "save_every=4 eval_every=4"
        )
        return config.read(pairs=[*base.split(), *pairs])

    return make


def losses(run: config.Run) -> list[float]:
    lines = Path(run.folder, "metrics.jsonl").read_text().splitlines()
    return [found["loss"] for line in lines if "loss" in (found := json.loads(line))]


@pytest.mark.slow
def test_fit_dynamic_losses_match_exact_shapes(run_on: Any) -> None:
    run = run_on("run")
    said = io.StringIO()
    assert fit.fit(run, Console(file=said)).ended == "done"
    assert "batches are padded to the next of 48 tokens per row" in said.getvalue()
    recipe = run.recipe(xf.device_count())
    reader = Reader(run.data, Path(run.folder), recipe.model.vocab)
    state, want = train.init(recipe, run.seed), []
    for step in range(recipe.steps):
        batch = reader.batch(step)
        assert batch.segments is None
        state, metrics = train.train_step(state, batch, recipe=recipe)
        want.append(metrics.loss.item())
    torch.testing.assert_close(losses(run), want, rtol=2e-5, atol=1e-6)
    explained = train.dynamic_step(recipe, 48, (48,), None).explain()
    assert f"bucket S<=48: {recipe.steps} calls, one program" in explained


def test_reader_dynamic_resume_and_changed_rows(run_on: Any) -> None:
    run = run_on("whole")
    whole, parts = (Reader(run.data, Path(run.folder)) for _ in range(2))
    assert parts.go_on(whole.state(3)) == ""
    again = parts.batch(3)
    assert torch.equal(whole.batch(3).tokens, again.tokens)
    assert torch.equal(whole.batch(3).targets, again.targets)
    packed = Reader(dataclasses.replace(run.data, dynamic=False), Path(run.folder))
    with pytest.raises(DataChangedError, match="dynamic was True, is False"):
        packed.go_on(whole.state(3))
    with pytest.raises(DataChangedError, match="dynamic was False, is True"):
        whole.go_on(packed.state(3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dynamic": True, "kind": "pairs"}, "rows of one document, and pairs has two"),
        ({"memory_limit": 100}, "use a number of bytes, with data.dynamic"),
        ({"memory_limit": 0, "dynamic": True}, "memory_limit is 0"),
    ],
)
def test_data_config_dynamic_setting_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DataConfig(**settings)


@pytest.mark.parametrize("block", [1, 3, 100])
def test_by_length_rows_of_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each document is cut in the same way, whatever block it is in."""
    monkeypatch.setattr(packing, "BLOCK", block)
    rows = ByLength(part(), 32, 2, seed=0)
    found = [rows.batch(0, np.array([k]))[0][0].tolist() for k in range(rows.rows)]
    expected = []
    for size, end in zip(SIZES, np.cumsum(SIZES).tolist(), strict=True):
        document = list(range(end - size, end))
        pieces = [document[k : k + 32] for k in range(0, size, 32)]
        expected += [piece for piece in pieces if piece != [end - 1]]
    assert sorted(found) == sorted(expected)


def test_by_length_of_many_documents_takes_little_memory() -> None:
    ends = np.arange(1, 4_000_001) * 50
    known = Part(np.broadcast_to(np.uint16(7), 200_000_000), ends)
    tracemalloc.start()
    rows = ByLength(known, 2048, 8, 0)
    for epoch in range(3):
        rows.batch(epoch, np.arange(0, 1_900_000, 400_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < ends.nbytes
    assert rows.rows == 4_000_000
