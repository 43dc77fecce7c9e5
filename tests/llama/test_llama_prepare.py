"""The reader prepares data before the first step, and finds damage and bad records."""

import dataclasses
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

from examples.llama import config
from examples.llama.checkpoint.checkpoints import Checkpoints
from examples.llama.config import Run
from examples.llama.data import disk_cache, documents, tokenizer
from examples.llama.data.data_config import DataConfig
from examples.llama.data.documents import DataError
from examples.llama.data.reader import Reader
from examples.llama.train import fit
from tests.llama.texts import documents_of, write_lines


def held_out_text(reader: Reader) -> str:
    rows = [row for n in range(reader.held_out_batches) for row in reader.held_out(n).tokens]
    return "".join(reader.tokenizer.decode(row.tolist()) for row in rows)


# -- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("train.tokens", lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], "train.tokens differ"),
        ("train.tokens", lambda b: b[:-2], "the sizes of train.tokens differ"),
        ("held_out.ends.npy", lambda b: b[:-1] + b"\x01", "held_out.ends.npy differ"),
        (
            "tokenizer.json",
            lambda b: b.replace(b'"a"', b'"\xc3\xa9"', 1),
            "tokenizer.json differ",
        ),
        ("about.json", None, "No such file"),
        ("sha256.json", lambda b: b[:9], "Unterminated string"),
        ("sha256.json", None, "No such file"),
    ],
)
def test_reader_makes_damaged_files_again(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes] | None, reason: str
) -> None:
    files = (str(write_lines(tmp_path / "a.jsonl", *documents_of(200))),)
    settings = DataConfig(files, vocab=300, seq=16)
    whole = Reader(settings, tmp_path)
    state, batch = whole.state(0), whole.batch(3)
    file = sorted(tmp_path.rglob(name))[0]
    file.write_bytes(damage(file.read_bytes())) if damage else file.unlink()
    told: list[str] = []
    again = Reader(settings, tmp_path, say=told.append)
    assert f"{file.parent} is damaged and is made again: " in told[0]
    assert reason in told[0]
    assert again.state(0) == state
    assert (again.batch(3).tokens == batch.tokens).all()
    told.clear()
    Reader(settings, tmp_path, say=told.append)
    assert told == []


def test_reader_data_behind_a_url(tmp_path: Path) -> None:
    system = fsspec.filesystem("memory")
    local = write_lines(tmp_path / "a.jsonl", *documents_of(200))
    system.pipe("/bucket/a.jsonl", local.read_bytes())
    settings = DataConfig(("memory://bucket/*.jsonl",), vocab=300, seq=16)
    reader = Reader(settings, tmp_path)
    expected = Reader(dataclasses.replace(settings, files=(str(local),)), tmp_path)
    assert reader.state(5) == expected.state(5)
    system.pipe("/bucket/a.jsonl", local.read_bytes().replace(b"few", b"new"))
    with pytest.raises(DataError, match=r"not that of the checkpoint: text was \w+, is \w+"):
        Reader(settings, tmp_path).go_on(reader.state(5))
    system.rm("/bucket", recursive=True)


def test_reader_checks_large_data_while_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (str(write_lines(tmp_path / "a.jsonl", *documents_of(200))),)
    settings = DataConfig(files, vocab=300, seq=16)
    first = Reader(settings, tmp_path)
    first.check()
    tokens = next(tmp_path.rglob("train.tokens"))
    size, digest, go = tokens.stat().st_size, hashlib.file_digest, threading.Event()

    def slow(file: Any, name: str) -> Any:
        if file.name == str(tokens):
            go.wait()
        return digest(file, name)

    monkeypatch.setattr(disk_cache, "AT_ONCE", size)
    monkeypatch.setattr(hashlib, "file_digest", slow)
    reader = Reader(settings, tmp_path)
    assert (reader.batch(3).tokens == first.batch(3).tokens).all()
    reader.check(wait=False)
    go.set()
    reader.check()

    content = tokens.read_bytes()
    tokens.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    told: list[str] = []
    damaged = Reader(settings, tmp_path, say=told.append)
    assert told == []
    with pytest.raises(
        DataError, match=r"is damaged, and was read: the checksums of train\.tokens"
    ):
        damaged.check()
    again = Reader(settings, tmp_path, say=told.append)
    assert "is made again" in told[0]
    again.check()
    assert tokens.read_bytes() == content
    tokens.write_bytes(content[:-2])
    Reader(settings, tmp_path, say=told.append)
    assert "the sizes of train.tokens differ" in told[-2]


def test_fit_with_damaged_data_saves_no_checkpoint(
    run_of: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit.fit(run_of("a", "data.cache=null", "train.steps=4"))
    run = run_of("a", "data.cache=null")
    tokens = next(Path(run.folder).rglob("train.tokens"))
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    monkeypatch.setattr(disk_cache, "AT_ONCE", 0)
    with pytest.raises(
        DataError, match=r"checksums of train\.tokens differ\. Run the command again"
    ):
        fit.fit(run)
    with Checkpoints(Path(run.folder, "checkpoints")) as checkpoints:
        assert checkpoints.latest() == 4
    assert fit.fit(run).ended == "done"


# -- records that cannot be read ----------------------------------------------------------------

BAD = ["{", '"a"', {"body": "b"}, {"text": 3}, "[" * 100_000]


def test_reader_skip_bad_leaves_out_bad_records(tmp_path: Path) -> None:
    good = documents_of(150)
    file = write_lines(tmp_path / "a.jsonl", *good[:75], *BAD, *good[75:])
    with file.open("ab") as end:
        end.write(b'{"text": "\xff"}\n')
    alone = Reader(
        DataConfig((str(write_lines(tmp_path / "b.jsonl", *good)),), vocab=300, seq=16), tmp_path
    )
    settings = DataConfig((str(file),), vocab=300, seq=16, skip_bad=True)
    for _ in range(2):  # What is found on the disk is told too.
        told: list[str] = []
        reader = Reader(settings, tmp_path, say=told.append)
        assert reader.state(0) == alone.state(0)
        assert told[-1].startswith(f"6 records are skipped: cannot read line 76 of {file}: ")
        assert f"line 78 of {file} has no field 'text'" in told[-1]
        assert "; and others, see " in told[-1]
        assert "data.skip_bad" not in told[-1]
    counts = [len(file.read_text().splitlines()) for file in tmp_path.rglob("left_out.txt")]
    assert sorted(counts) == [0, 6]


@pytest.mark.parametrize("line", range(len(BAD)))
def test_read_bad_record_raises(tmp_path: Path, line: int) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": "good"}, BAD[line])
    with pytest.raises(DataError, match=r"line 2 of .*a\.jsonl"):
        list(documents.read([str(file)]))


def test_reader_skip_bad_of_all_records_raises(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", *[{"body": "b"}] * 3)
    with pytest.raises(DataError, match=r"all 3 records are skipped: line 1 of .*no field"):
        Reader(DataConfig((str(file),), vocab=300, skip_bad=True), tmp_path)


# -- validation ---------------------------------------------------------------------------------


def test_reader_validation_file(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.jsonl", *documents_of(100))
    other = write_lines(tmp_path / "other.jsonl", {"text": "never seen before"}, {"text": "nor so"})
    settings = DataConfig((str(train),), validation=(str(other),), vocab=300, seq=16, batch=2)
    reader = Reader(settings, tmp_path)
    assert held_out_text(reader) == "never seen beforenor so"
    assert "of 100 documents to train on" in str(reader)
    write_lines(other, {"text": "never seen before"}, {"text": "nor that"})
    changed = Reader(settings, tmp_path)
    assert held_out_text(changed) == "never seen beforenor that"
    assert changed.tokenizer.digest == reader.tokenizer.digest  # made of what is trained on


def test_reader_wrong_validation_file_raises(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.jsonl", *documents_of(100))
    with pytest.raises(DataError, match=r"train\.jsonl: both in data\.files and in data\.val"):
        Reader(DataConfig((str(train),), validation=(str(tmp_path),)), tmp_path, vocab=300)
    empty = write_lines(tmp_path / "empty.jsonl", {"text": " "})
    with pytest.raises(DataError, match=r"data\.validation has no text: give other files"):
        Reader(DataConfig((str(train),), validation=(str(empty),)), tmp_path, vocab=300)


# -- tokenizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny", "tiny-tied", "tiny-scaled"])
def test_reader_trains_tokenizer_for_small_models(model: str, text: Path, tmp_path: Path) -> None:
    pairs = f"folder={tmp_path} data.files={text} train.model={model} data.seq=16"
    run = config.read(pairs=pairs.split())
    reader = Reader(run.data, tmp_path, run.train.model.vocab)
    assert 258 <= reader.tokenizer.size <= run.train.model.vocab
    with pytest.raises(DataError, match=r"data\.vocab is null, and there is no model"):
        Reader(run.data, tmp_path)


def test_tokenizer_decode_after_prompt_keeps_the_space(tmp_path: Path) -> None:
    """A tokenizer like that of Llama 2, which has its spaces in front of words."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁the": 3, "▁cat": 4, "s": 5, "▁": 6}
    made = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<s>", "</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    known = tokenizer.load(tmp_path)
    assert known.decode([4, 5]) == "cats"
    assert known.decode_after([1, 3], [4, 5]) == " cats"
    assert known.decode_after([1, 3], [5, 4, 2]) == "s cat"
    assert known.decode_after([1], [3, 4]) == "the cat"
