"""Texts in slices, for `examples.llama.data.tokenizer`."""

import pytest

from examples.llama.data import tokenizer


def test_tokenizer_slices_end_with_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "_SLICE", 5)
    assert list(tokenizer.slices("ab\nc\nde")) == ["ab\nc\n", "de"]
    assert list(tokenizer.slices("abcdefg\nh")) == ["abcde", "fg\nh"]
    assert list(tokenizer.slices("abcde")) == ["abcde"]
    assert list(tokenizer.slices("")) == []
