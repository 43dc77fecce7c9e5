"""Weighted mixtures of sources: which rows are whose, epochs, what is held out, and resuming."""

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from examples.llama import config
from examples.llama.data import mixture
from examples.llama.data.documents import DataError
from examples.llama.data.reader import DataChangedError, DataConfig, Reader
from examples.llama.model import Batch
from tests.llama.texts import write_lines

WEIGHTS = [[1], [1, 1], [7, 3], [1, 99], [5, 3, 2], [1, 1, 1, 1], [3, 1, 4, 1, 5]]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_turn_counts_rows_of_each_source(weights: list[int]) -> None:
    counts = Counter[int]()
    for number in range(3 * sum(weights)):
        source, before = mixture.turn(number, weights)
        assert before == counts[source]
        counts[source] += 1
        for i, weight in enumerate(weights):
            assert abs(counts[i] - (number + 1) * weight / sum(weights)) < i + 1
    assert [counts[i] for i in range(len(weights))] == [3 * weight for weight in weights]
    source, before = mixture.turn(10**15 * sum(weights), weights)
    assert before == 10**15 * weights[source]


def test_whole_keeps_ratios() -> None:
    assert mixture.whole([0.7, 0.3]) == [7, 3]
    assert mixture.whole([2.0, 4, 6]) == [1, 2, 3]
    assert mixture.whole([1e-3, 1]) == [1, 1000]


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Files of 40, 200 and 120 documents, with words of their own."""
    draw, files = np.random.default_rng(0), []
    for name, count in (("a", 40), ("b", 200), ("c", 120)):
        texts = [f"{name} " * int(draw.integers(5, 40)) + str(i) for i in range(count)]
        rows = [{"text": text} for text in texts]
        files.append(str(write_lines(tmp_path / f"{name}.jsonl", *rows)))
    return files


def settings(files: list[str], trained: Path, **changes: Any) -> DataConfig:
    given = DataConfig(tuple(files), tokenizer=str(trained), vocab=300, batch=10, seq=32)
    return dataclasses.replace(given, **changes)


def rows(reader: Reader, steps: range) -> list[tuple[list[int], ...]]:
    batches = [xf.tree.leaves(reader.batch(step)) for step in steps]
    return [tuple(x[i].tolist() for x in leaves) for leaves in batches for i in range(10)]


def test_reader_mixture_has_the_rows_of_each_source(
    sources: list[str], trained: Path, tmp_path: Path
) -> None:
    weights = (0.5, 0.3, 0.2)
    reader = Reader(settings(sources, trained, weights=weights), tmp_path)
    alone = [Reader(settings([file], trained), tmp_path) for file in sources]
    assert "(50.0% " in str(reader)
    mixed = rows(reader, range(200))
    theirs = [rows(one, range(100)) for one in alone]
    taken = [0, 0, 0]
    for number, row in enumerate(mixed):
        source, before = mixture.turn(number, [5, 3, 2])
        assert row == theirs[source][before]  # past its first epoch, too
        taken[source] += 1
    assert taken == [1000, 600, 400]


def test_reader_mixture_shares_of_tokens(sources: list[str], trained: Path, tmp_path: Path) -> None:
    reader = Reader(settings(sources, trained, weights=(0.6, 0.1, 0.3)), tmp_path)
    letters = Counter[str]()
    for step in range(300):
        text = "".join(map(reader.tokenizer.decode, reader.batch(step).tokens.tolist()))
        letters.update(letter for letter in text if letter in "abc")
    shares = [letters[letter] / letters.total() for letter in "abc"]
    assert shares == pytest.approx([0.6, 0.1, 0.3], abs=0.01)


def test_reader_mixture_rows_of_processes(
    sources: list[str], trained: Path, tmp_path: Path
) -> None:
    given = settings(sources, trained, weights=(2, 1, 1))
    reader = Reader(given, tmp_path)
    for part in ([0, 1, 2, 3, 4], [9, 5, 7]):
        some = Reader(given, tmp_path, rows=part)
        for ours, whole in (
            (some.batch(31), reader.batch(31)),
            (some.held_out(1), reader.held_out(1)),
        ):
            leaves = zip(xf.tree.leaves(ours), xf.tree.leaves(whole), strict=True)
            assert all(torch.equal(x, y[part]) for x, y in leaves)


def tokens_of(batches: list[Batch]) -> list[int]:
    found = []
    for batch in batches:
        assert batch.segments is not None
        found += batch.tokens[batch.segments > 0].tolist()
    return sorted(found)


def test_reader_mixture_holds_out_of_each_source(
    sources: list[str], trained: Path, tmp_path: Path
) -> None:
    def held_out(given: DataConfig) -> list[Batch]:
        reader = Reader(given, tmp_path)
        return [reader.held_out(i) for i in range(reader.held_out_batches)]

    mixed = held_out(settings(sources, trained, weights=(1, 2, 3)))
    each = [batch for file in sources for batch in held_out(settings([file], trained))]
    assert tokens_of(mixed) == tokens_of(each)
    decode = Reader(settings(sources, trained), tmp_path).tokenizer.decode
    first = "".join(map(decode, mixed[0].tokens.tolist()))
    assert {"a", "b", "c"} <= set(first)  # A few batches evaluate all of them.
    given = settings(sources[:2], trained, validation=(sources[2],))
    weighted = dataclasses.replace(given, weights=(1, 2))
    assert tokens_of(held_out(weighted)) == tokens_of(held_out(given))
    trained_on = str(Reader(given, tmp_path)).partition(" to train on")[0]
    assert str(Reader(weighted, tmp_path)).startswith(trained_on)


def test_reader_mixture_goes_on(sources: list[str], trained: Path, tmp_path: Path) -> None:
    given = settings(sources, trained, weights=(0.5, 0.3, 0.2))
    state = json.loads(json.dumps(Reader(given, tmp_path).state(7)))
    assert Reader(given, tmp_path).go_on(state) == ""
    same = dataclasses.replace(given, weights=(5, 3, 2))
    assert Reader(same, tmp_path).go_on(state) == ""
    other = dataclasses.replace(given, weights=(1, 1, 1))
    with pytest.raises(DataChangedError, match=r"weights was \[5, 3, 2\], is \[1, 1, 1\]\. Resume"):
        Reader(other, tmp_path).go_on(state)
    reader = Reader(other, tmp_path)
    assert reader.go_on(state, new_data=True).startswith("from step 8 on the data is different")
    assert rows(reader, range(7, 8)) == rows(Reader(other, tmp_path), range(1))
    with pytest.raises(DataChangedError, match=r"weights was \[5, 3, 2\], is \[1\]"):
        Reader(settings(sources, trained), tmp_path).go_on(state)


def test_reader_mixture_trains_one_tokenizer(sources: list[str], tmp_path: Path) -> None:
    given = DataConfig(tuple(sources), weights=(1, 1, 8), vocab=300, batch=2, seq=16)
    reader, again = Reader(given, tmp_path), Reader(given, tmp_path)
    assert reader.state(0) == again.state(0)
    assert len(list(tmp_path.rglob("tokenizer.json"))) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": (1.0,)}, "weights are 1, and files 2: give a weight for each entry of data.f"),
        ({"weights": (1.0, 0.0)}, r"weights has 0\.0: use numbers above 0, or leave the files out"),
        ({"weights": (1.0, 2.0), "dynamic": True}, "weights are shares of rows, and dynamic"),
    ],
)
def test_data_config_wrong_weights_raise(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DataConfig(("a", "b"), **changes)


def test_reader_mixture_of_too_little_names_the_source(
    sources: list[str], trained: Path, tmp_path: Path
) -> None:
    short = str(write_lines(tmp_path / "short.jsonl", {"text": "a"}))
    given = settings([sources[0], short], trained, weights=(1, 1))
    with pytest.raises(DataError, match=r"tokens of '.*short\.jsonl' to train on do not fill one"):
        Reader(given, tmp_path)


def test_settings_of_a_mixture() -> None:
    run = config.read(pairs=["data.files=[a/*.jsonl, b]", "data.weights=[0.7, 0.3]"])
    assert (run.data.files, run.data.weights) == (("a/*.jsonl", "b"), (0.7, 0.3))
