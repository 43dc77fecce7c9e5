"""The internals of the corpus: slices that are encoded and chunks that are written."""

from pathlib import Path

import numpy as np
import pytest

from examples.llama.data import corpus, tokenizer


def documents_of(part: corpus.Part) -> list[list[int]]:
    return [d.tolist() for d in np.split(part.tokens, part.ends[:-1])] if len(part.ends) else []


@pytest.mark.parametrize("chunk", [1, 12, 1 << 20])
def test_corpus_write_load_round_trip(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(tokenizer, "_SLICE", 5)
    monkeypatch.setattr(corpus, "_CHUNK", chunk)
    t = tokenizer.load(trained)
    pieces = [("the fox\njumps", False), (" \n", False), ("dog", True), ("", True), ("a", False)]
    corpus.write(pieces, t, tmp_path)
    train, held_out, _ = corpus.load(tmp_path)
    assert train.tokens.dtype == np.uint16
    assert [(d[0], t.decode(d), d[-1]) for d in documents_of(train)] == [
        (0, "the fox\njumps", 1),
        (0, "a", 1),
    ]
    assert documents_of(held_out) == [[0, *t.encode(["dog"])[0], 1]]
    assert all(d.count(0) == d.count(1) == 1 for d in documents_of(train))
