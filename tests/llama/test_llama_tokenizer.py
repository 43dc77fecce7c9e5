"""Tokenizers of the Llama example: trained, given, and as transformers reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from examples.llama.data import tokenizer
from examples.llama.data.documents import DataError
from tests.llama.texts import SENTENCES


@pytest.mark.slow
def test_tokenizer_trained_encodes_and_decodes(trained: Path) -> None:
    t = tokenizer.load(trained)
    assert (t.begin, t.end, t.size) == (0, 1, 300)
    unseen = 'naïve “quotes”\n\tλ x: "🙂"'
    (encoded,) = t.encode([unseen])
    assert t.decode(encoded) == unseen
    assert t.encode_prompt(unseen) == [0, *encoded]
    assert t.decode([0, *encoded, 1]) == unseen
    assert len(t.encode(["the quick brown fox"])[0]) <= 8


def test_tokenizer_encode_takes_special_tokens_as_text(trained: Path) -> None:
    t = tokenizer.load(trained)
    (encoded,) = t.encode(["a<|end_of_text|>b"])
    assert not {0, 1} & set(encoded)
    assert t.decode(encoded) == "a<|end_of_text|>b"


def test_tokenizer_train_is_deterministic(trained: Path, tmp_path: Path) -> None:
    tokenizer.train(SENTENCES, 300, tmp_path)
    assert tokenizer.load(tmp_path).digest == tokenizer.load(trained).digest
    tokenizer.train(SENTENCES, 290, tmp_path)
    assert tokenizer.load(tmp_path).digest != tokenizer.load(trained).digest


def test_tokenizer_loads_in_transformers(trained: Path) -> None:
    import transformers

    theirs: Any = transformers.AutoTokenizer.from_pretrained(trained)
    ours = tokenizer.load(trained)
    assert theirs("the lazy fox").input_ids == ours.encode_prompt("the lazy fox")
    assert (theirs.bos_token_id, theirs.eos_token_id) == (ours.begin, ours.end)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, (0, 1)),
        ({}, (0, 1)),
        ({"bos_token": None, "eos_token": "x"}, (None, 2)),
        ({"bos_token": {"content": "x"}, "eos_token": "missing"}, (2, None)),
    ],
)
def test_tokenizer_begin_and_end_by_settings(
    tmp_path: Path, settings: Any, expected: tuple[int, int]
) -> None:
    vocab = {"<s>": 0, "</s>": 1, "x": 2, "y": 9}
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="x"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    built.enable_truncation(2)
    built.enable_padding(length=5)
    built.save(str(tmp_path / "mine.json"))
    if settings is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    t = tokenizer.load(tmp_path / "mine.json")
    assert (t.begin, t.end) == expected
    assert t.size == 10
    assert t.encode(["x y y y", "y"]) == [[2, 9, 9, 9], [9]]
    t.save(tmp_path / "copy")
    copy = tokenizer.load(tmp_path / "copy")
    assert (copy.digest, copy.begin, copy.end) == (t.digest, t.begin, t.end)
    copy.save(tmp_path / "copy")  # onto itself
    assert tokenizer.load(tmp_path / "copy").digest == t.digest


def test_tokenizer_digest_depends_on_begin_and_end(trained: Path, tmp_path: Path) -> None:
    tokenizer.load(trained).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": null}')
    assert tokenizer.load(tmp_path).digest != tokenizer.load(trained).digest


def test_tokenizer_errors(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no tokenizer at .*tokenizer\.json: give a tokenizer.json"
    ):
        tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(DataError, match=r"cannot read .*tokenizer\.json: .*EOF.*another tokenizer"):
        tokenizer.load(tmp_path)
    with pytest.raises(DataError, match=r"a vocabulary of 257 is too small .* use 258 tokens"):
        tokenizer.train(["text"], 257, tmp_path)
    t = tokenizer.load(trained)
    t.check_fits(300)
    with pytest.raises(DataError, match="the tokenizer has 300 tokens and the model 299: use"):
        t.check_fits(299)
