"""The reader of the Llama example: batches by seed and step, what is held out, other data."""

import dataclasses
import json
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.data import documents, packing, reader, tokenizer
from examples.llama.data.documents import DataError
from examples.llama.data.reader import DataChangedError, DataConfig, Reader
from tests.llama.texts import lines


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder and 150 documents, of which some are held out whole."""
    folder = tmp_path_factory.mktemp("run")
    words = "the quick brown fox jumps over lazy dog".split()
    draw = np.random.default_rng(0)
    texts = [" ".join([f"#{i}#", *draw.choice(words, draw.integers(1, 40))]) for i in range(150)]
    (folder / "a.jsonl").write_bytes(lines(*({"text": text} for text in texts)))
    return folder


def config_of(run: Path, **changes: Any) -> DataConfig:
    config = DataConfig((str(run / "a.jsonl"),), vocab=300, batch=4, seq=32)
    return dataclasses.replace(config, **changes)


def equal(a: model.Batch, b: model.Batch) -> bool:
    return all(torch.equal(x, y) for x, y in zip(xf.tree.leaves(a), xf.tree.leaves(b), strict=True))


def real(batches: Iterable[model.Batch]) -> torch.Tensor:
    """The tokens that are not padding."""
    found = []
    for tokens, _, segments in batches:
        assert segments is not None
        found.append(tokens[segments > 0])
    return torch.cat(found)


def texts_of(r: Reader, batches: Iterable[model.Batch]) -> str:
    return "\n".join(r.tokenizer.decode(row) for b in batches for row in b.tokens.tolist())


def test_reader_batches_depend_on_seed_and_step_only(run: Path) -> None:
    r = Reader(config_of(run), run)
    batches = [r.batch(step) for step in range(60)]
    assert batches[0].tokens.shape == (4, 32)
    assert {part.dtype for part in xf.tree.leaves(batches[0])} == {torch.int32}
    again = Reader(config_of(run), run)
    for step in (59, 3, 40, 0, 3):
        assert equal(again.batch(step), batches[step])
    assert not equal(batches[0], batches[1])
    assert not equal(Reader(config_of(run, seed=1), run).batch(0), batches[0])


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_reader_epochs_follow_without_a_gap(run: Path, batch: int) -> None:
    single = Reader(config_of(run, batch=1), run)
    r = Reader(config_of(run, batch=batch), run)
    for step in (0, 1, 50):
        rows = [single.batch(step * batch + i) for i in range(batch)]
        assert equal(model.Batch(*map(torch.cat, zip(*rows, strict=True))), r.batch(step))


def test_reader_epochs_differ_in_order_only(run: Path) -> None:
    r = Reader(config_of(run, batch=1), run)
    total = int(re.match(r"([\d,]+) tokens of", str(r))[1].replace(",", ""))  # pyright: ignore[reportOptionalSubscript]
    rows = -(-total // 32)
    epochs = [[r.batch(step) for step in range(e * rows, (e + 1) * rows)] for e in range(2)]
    tokens = [real(epoch) for epoch in epochs]
    assert [len(seen) for seen in tokens] == [total, total]
    assert torch.equal(tokens[0].sort().values, tokens[1].sort().values)
    rows_of = [{tuple(b.tokens[0].tolist()) for b in epoch} for epoch in epochs]
    assert len(rows_of[0] & rows_of[1]) < rows // 10


def test_reader_never_trains_on_held_out_documents(run: Path) -> None:
    r = Reader(config_of(run), run)
    texts = documents.read(documents.find(r.config.files))
    expected: tuple[set[str], set[str]] = set(), set()
    for text, held in documents.split(texts, 0.1):
        expected[held].update(re.findall(r"#(\d+)#", text))

    batches = map(r.batch, range(100)), map(r.held_out, range(r.held_out_batches))
    train, held_out = (set(re.findall(r"#(\d+)#", texts_of(r, part))) for part in batches)
    assert train == expected[False]
    assert held_out <= expected[True]
    assert len(held_out) >= len(expected[True]) - 2  # The end of a row may cut a number.


def test_reader_held_out_batches_have_each_token_once(run: Path) -> None:
    r = Reader(config_of(run), run)
    batches = [r.held_out(i) for i in range(r.held_out_batches)]
    tokens = real(batches)
    assert f"{len(tokens):,} of {int((tokens == 0).sum())} held out" in str(r)
    assert len(tokens) < sum(batch.tokens.numel() for batch in batches)
    for number in (-1, r.held_out_batches):
        with pytest.raises(IndexError, match=rf"no batch {number}: \d+ are held out"):
            r.held_out(number)


def test_reader_with_given_tokenizer(run: Path, trained: Path) -> None:
    r = Reader(config_of(run, tokenizer=str(trained)), run)
    assert r.tokenizer.digest == tokenizer.load(trained).digest
    assert "the quick" in texts_of(r, [r.batch(0)])


def test_reader_trains_tokenizer_without_held_out_text(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    train = tokenizer.train

    def spy(texts: Iterable[str], vocab: int, folder: Path) -> None:
        seen.extend(texts)
        train(seen, vocab, folder)

    monkeypatch.setattr(tokenizer, "train", spy)
    Reader(config_of(run), tmp_path)
    rows = map(json.loads, (run / "a.jsonl").read_text().splitlines())
    split = documents.split([row["text"] for row in rows], 0.1)
    assert seen == [text for text, held in split if not held]


def test_reader_state_round_trip_through_json(run: Path) -> None:
    r = Reader(config_of(run), run)
    state = json.loads(json.dumps(r.state(12)))
    assert state["step"] == 12
    assert Reader(config_of(run), run).go_on(state) == ""


def test_reader_go_on_with_other_data_raises(run: Path, tmp_path: Path) -> None:
    state = Reader(config_of(run), run).state(12)
    with pytest.raises(
        DataChangedError,
        match=r"not that of the checkpoint: seq was 32, is 16; seed was 0, is 7\. Resume",
    ):
        Reader(config_of(run, seq=16, seed=7), run).go_on(state)
    other = tmp_path / "a.jsonl"
    other.write_bytes((run / "a.jsonl").read_bytes() + lines({"text": "one more " * 50}))
    with pytest.raises(
        DataChangedError, match=r"text was \w+, is \w+; tokenizer was \w+, is \w+\."
    ):
        Reader(config_of(run, files=(str(other),)), tmp_path).go_on(state)
    other.write_bytes((run / "a.jsonl").read_bytes())
    copy = Reader(config_of(run, files=(str(other),)), tmp_path)
    assert copy.go_on(state) == ""  # a copy is the same data


def test_reader_go_on_of_many_documents_in_another_order_raises(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Reader(config_of(run), run).state(12)
    monkeypatch.setattr(packing, "BLOCK", 50)
    r = Reader(config_of(run), run)
    assert r.go_on(r.state(12)) == ""
    assert torch.equal(
        real(r.batch(step) for step in range(12, 30)).sort().values,
        real(Reader(config_of(run), run).batch(step) for step in range(12, 30)).sort().values,
    )
    with pytest.raises(
        DataChangedError, match=r"order was of blocks of 16,384 documents, is of blocks of 50 doc"
    ):
        r.go_on(state)
    assert r.go_on(state, new_data=True).startswith("from step 13 on")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch is 0: use 1 or more"),
        ({"seq": 0}, "seq is 0: use 1 or more"),
        ({"seed": -1}, "seed is -1: use 0 or more"),
        ({"held_out": 0.0}, "held_out is 0.0: use a fraction between 0 and 1"),
        ({"held_out": 1.0}, "held_out is 1.0: use a fraction between 0 and 1"),
    ],
)
def test_data_config_wrong_values_raise(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DataConfig(**changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the 0 tokens to train on do not fill one row of 32: use more text"),
        (" \n\n", "the 0 tokens to train on do not fill one row of 32: use more text"),
        ("short", r"the \d+ tokens to train on do not fill one row of 32: use more text"),
        ("x" + " " * 999, "none of 1 documents is held out: use a larger part than 0.1"),
    ],
)
def test_reader_with_too_little_text_raises(
    tmp_path: Path, trained: Path, text: str, message: str
) -> None:
    (tmp_path / "a.txt").write_text(text)
    config = config_of(tmp_path, files=(str(tmp_path / "a.txt"),), tokenizer=str(trained))
    with pytest.raises(DataError, match=message):
        Reader(config, tmp_path)


def test_reader_with_empty_text_and_no_tokenizer_raises(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError, match="the 0 tokens to train on do not fill one row of 32"):
        Reader(config_of(tmp_path, files=(str(tmp_path / "a.txt"),)), tmp_path)


# Prefetching


def test_prefetch_is_in_order_and_not_far_ahead() -> None:
    begun: list[int] = []

    def batch(step: int) -> Any:
        begun.append(step)
        return step

    for taken, got in enumerate(reader.prefetch(batch, range(5, 50), ahead=3), 1):
        assert got == 4 + taken
        assert len(begun) <= taken + 3
    assert begun == list(range(5, 50))
    assert list(reader.prefetch(batch, range(3, 3))) == []


def test_prefetch_error_is_raised_and_ends_the_thread() -> None:
    def batch(step: int) -> Any:
        if step == 2:
            raise DataError("damaged")
        return step

    got: list[Any] = []
    with pytest.raises(DataError, match="damaged"):
        got.extend(reader.prefetch(batch, range(9)))
    assert got == [0, 1]
    assert not [t for t in threading.enumerate() if t.name.startswith("reader")]


def test_prefetch_close_ends_the_thread() -> None:
    batches = reader.prefetch(lambda step: step, range(10**9))  # pyright: ignore[reportArgumentType]
    assert next(batches) == 0
    assert [t for t in threading.enumerate() if t.name.startswith("reader")]
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("reader")]
