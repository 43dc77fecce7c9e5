"""Data of the Llama example: files to documents, documents to tokens, tokens to packed batches."""

import bz2
import contextlib
import dataclasses
import gzip
import json
import lzma
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import tokenizers
import torch

import xfunc as xf
from examples.llama import corpus, disk_cache, documents, model, packing, reader, tokenizer
from examples.llama.documents import DataError
from examples.llama.plan import Plan
from examples.llama.reader import DataChangedError, DataConfig, Reader

# Documents


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(**columns: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "déjà\n\nvu\n".encode(), ["déjà\n\nvu\n"]),
        ("a.md", b"# one\r\ntwo", ["# one\ntwo"]),
        ("without-ending", b"text", ["text"]),
        ("a.txt.gz", gzip.compress(b"text", mtime=0), ["text"]),
        ("a.jsonl", lines({"text": "a\n1", "n": 1}, {"n": "x", "text": "b"}), ["a\n1", "b"]),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": null}', ["a", ""]),
        ("a.ndjson", lines({"text": "a", "n": {"deep": []}}, {"text": "b"}), ["a", "b"]),
        ("a.jsonl.gz", gzip.compress(lines({"text": "a"}), mtime=0), ["a"]),
        ("a.jsonl.bz2", bz2.compress(lines({"text": "a"})), ["a"]),
        ("a.jsonl.xz", lzma.compress(lines({"text": "a"})), ["a"]),
        ("a.jsonl", b"", []),
        ("a.json", json.dumps([{"text": "a"}, {"text": "b"}]).encode(), ["a", "b"]),
        ("a.JSON", lines({"text": "a", "n": 1}, {"text": "b", "n": 2}), ["a", "b"]),
        ("a.parquet", parquet(n=[1, 2], text=["a", None]), ["a", ""]),
    ],
)
def test_formats(tmp_path: Path, name: str, content: bytes, expected: list[str]) -> None:
    (tmp_path / name).write_bytes(content)
    assert list(documents.read([str(tmp_path / name)])) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", lines({"body": "a", "text": 1})),
        ("a.json", lines({"body": "a", "text": 1})),
        ("a.parquet", parquet(body=["a"], text=[1])),
    ],
)
def test_another_field(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert list(documents.read([str(tmp_path / name)], "body")) == ["a"]


def test_values_of_another_field_may_change_far_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    rows = [{"text": str(i), "meta": "x" * 100 if i < 110_000 else [i]} for i in range(110_010)]
    file.write_bytes(lines(*rows))
    assert file.stat().st_size > 10 << 20  # `datasets` takes types from the first 10 MiB
    assert list(documents.read([str(file)])) == [row["text"] for row in rows]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"text": "a"}\n\n\n{"text": "b\n',
            "cannot read line 4 of .*a.jsonl: Unterminated string",
        ),
        ("a.jsonl", lines({"text": "a"}, {"body": "b"}), "line 2 of .*no field 'text'.*body"),
        ("a.jsonl", b'"a"\n', "line 1 of .*no field 'text'.*of nothing"),
        (
            "a.jsonl",
            lines({"text": ["a"]}),
            "line 1 of .*a list for 'text': set data.field",
        ),
        ("a.json", b'[{"text": "a"', "after 0 documents: "),
        ("a.parquet", parquet(text=["a"])[:-9], "after 0 documents: Parquet magic bytes not found"),
        ("a.parquet", parquet(b=["a"], a=[1]), "document 1 of .*no field 'text'.*of b, a"),
        ("a.txt", "é".encode("latin-1"), "after 0 documents: 'utf-8' codec can't decode"),
        (
            "a.jsonl.gz",
            gzip.compress(lines({"text": "a"}), mtime=0)[:-9],
            "after 1 lines: Compressed",
        ),
        ("a.jsonl.gz", b"text", "after 0 lines: "),
    ],
)
def test_unreadable_files(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    content: bytes,
    message: str,
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(documents.read([str(file)]))
    assert str(file) in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_folders_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.txt", "a.jsonl", "sub/c.parquet", "note", ".hidden.txt", ".git/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")

    def found(*sources: str) -> list[str]:
        return [f.removeprefix(f"{tmp_path}/") for f in documents.find(sources)]

    assert found(str(tmp_path)) == ["a.jsonl", "b.txt", "sub/c.parquet"]
    assert found(f"{tmp_path}/**/*.parquet", f"{tmp_path}/n*") == ["sub/c.parquet", "note"]
    assert found(f"{tmp_path}/b.txt", "python-docs", str(tmp_path)) == [
        "b.txt",
        "python-docs",
        "a.jsonl",
        "sub/c.parquet",
    ]
    monkeypatch.chdir(tmp_path)
    assert found("b.txt") == ["b.txt"]
    for nothing in ("missing.txt", "*.csv", ".git/sub"):
        with pytest.raises(DataError, match=f"no data at {re.escape(repr(nothing))}: give a file"):
            documents.find([nothing])


def test_python_docs_has_no_paragraph_twice() -> None:
    texts = list(documents.read(["python-docs"]))
    assert sum(map(len, texts)) > 300_000
    assert any("compound statement" in text for text in texts)
    paragraphs = [p for text in texts if text for p in text.split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs)


def test_held_out_documents_stay_when_others_come() -> None:
    texts = [f"document {i}" for i in range(300)]
    held = {text for text, held in documents.split(texts, 0.1) if held}
    assert 15 <= len(held) <= 45
    more = [f"new {i}" for i in range(300)] + texts[::-1]
    again = list(documents.split(more, 0.1))
    assert [text for text, _ in again] == more
    assert {text for text, held in again if held} & set(texts) == held


def test_the_end_of_each_of_few_documents_is_held_out() -> None:
    assert list(documents.split(["0123456789", "ab"], 0.2)) == [
        ("01234567", False),
        ("89", True),
        ("ab", False),
        ("", True),
    ]
    assert len(list(documents.split(["x"] * 99, 0.1))) == 198
    assert len(list(documents.split(["x"] * 100, 0.1))) == 100


# The tokenizer

SENTENCES = ["the quick brown fox\n" * 20, "jumps over the lazy dog with thinking whiskers\n" * 9]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.train(SENTENCES, 300, folder)
    return folder


def test_trained_tokenizer(trained: Path) -> None:
    t = tokenizer.load(trained)
    assert (t.begin, t.end, t.size) == (0, 1, 300)
    unseen = 'naïve “quotes”\n\tλ x: "🙂"'
    (encoded,) = t.encode([unseen])
    assert t.decode(encoded) == unseen
    assert t.encode_prompt(unseen) == [0, *encoded]
    assert t.decode([0, *encoded, 1]) == unseen
    assert len(t.encode(["the quick brown fox"])[0]) <= 8


def test_a_document_has_no_special_tokens(trained: Path) -> None:
    t = tokenizer.load(trained)
    (encoded,) = t.encode(["a<|end_of_text|>b"])
    assert not {0, 1} & set(encoded)
    assert t.decode(encoded) == "a<|end_of_text|>b"


def test_training_again_gives_the_same(trained: Path, tmp_path: Path) -> None:
    tokenizer.train(SENTENCES, 300, tmp_path)
    assert tokenizer.load(tmp_path).digest == tokenizer.load(trained).digest
    tokenizer.train(SENTENCES, 290, tmp_path)
    assert tokenizer.load(tmp_path).digest != tokenizer.load(trained).digest


def test_transformers_reads_it(trained: Path) -> None:
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
def test_begin_and_end(tmp_path: Path, settings: Any, expected: tuple[int, int]) -> None:
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


def test_begin_and_end_are_part_of_the_digest(trained: Path, tmp_path: Path) -> None:
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


def test_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "_SLICE", 5)
    assert list(tokenizer.slices("ab\nc\nde")) == ["ab\nc\n", "de"]
    assert list(tokenizer.slices("abcdefg\nh")) == ["abcde", "fg\nh"]
    assert list(tokenizer.slices("abcde")) == ["abcde"]
    assert list(tokenizer.slices("")) == []


# The corpus


def documents_of(part: corpus.Part) -> list[list[int]]:
    return [d.tolist() for d in np.split(part.tokens, part.ends[:-1])] if len(part.ends) else []


@pytest.mark.parametrize("chunk", [1, 12, 1 << 20])
def test_corpus(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
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


def test_a_large_vocabulary_and_no_special_tokens(tmp_path: Path) -> None:
    vocab = {"x": 0, "y": 65_536}
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="x"))
    built.save(str(tmp_path / "tokenizer.json"))
    corpus.write([("y", False)], tokenizer.load(tmp_path), tmp_path)
    train, held_out, _ = corpus.load(tmp_path)
    assert train.tokens.dtype == np.uint32
    assert documents_of(train) == [[65_536]]
    assert documents_of(held_out) == []


def test_the_fingerprint_is_of_text_and_where_it_is_cut(trained: Path, tmp_path: Path) -> None:
    def fingerprint(*pieces: tuple[str, bool]) -> str:
        corpus.write(pieces, tokenizer.load(trained), tmp_path)
        return corpus.load(tmp_path).fingerprint

    one = fingerprint(("ab", False), ("c", False))
    assert one == fingerprint(("ab", False), (" ", True), ("c", False))
    others = [
        fingerprint(("a", False), ("bc", False)),
        fingerprint(("abc", False)),
        fingerprint(("ab", False), ("c", True)),
        fingerprint(("c", False), ("ab", False)),
    ]
    assert len({one, *others}) == 5


def test_what_was_made_is_found_without_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "a.txt"
    text.write_text("one two three\n" * 100)
    config = DataConfig((str(text),), vocab=300, batch=2, seq=16)
    first = Reader(config, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(documents, "read", None)
        again = Reader(config, tmp_path / "run")
    assert again.state(0) == first.state(0)
    assert [str(p) for p in (tmp_path / "run").rglob("*.partial")] == []
    text.write_text("one two four\n" * 101)
    changed = Reader(config, tmp_path / "run")
    assert changed.state(0)["text"] != first.state(0)["text"]
    assert changed.tokenizer.digest != first.tokenizer.digest


def test_runs_may_share_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DataConfig(vocab=300, cache=str(tmp_path / "cache"))
    first = Reader(config, tmp_path / "one")
    monkeypatch.setattr(documents, "read", None)
    assert Reader(config, tmp_path / "two").state(0) == first.state(0)
    assert not (tmp_path / "one").exists()


def test_a_killed_run_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    def killed(folder: Path) -> None:
        (folder / "half").touch()
        raise SystemExit("killed")

    def whole(folder: Path) -> None:
        assert list(folder.iterdir()) == []
        (folder / "all").touch()

    with pytest.raises(SystemExit, match="killed"):
        disk_cache.cached(tmp_path, ["python-docs"], [1], killed)
    folder = disk_cache.cached(tmp_path, ["python-docs"], [1], whole)
    assert {p.name for p in folder.iterdir()} == {"all", "sha256.json"}
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == [folder]


def test_one_host_works_and_the_others_wait(tmp_path: Path) -> None:
    written, folders, barrier = [], [], threading.Barrier(4)

    def write(folder: Path) -> None:
        written.append(folder)

    def host() -> None:
        barrier.wait()
        folders.append(disk_cache.cached(tmp_path, ["python-docs"], [], write))

    hosts = [threading.Thread(target=host) for _ in range(4)]
    for thread in hosts:
        thread.start()
    for thread in hosts:
        thread.join()
    assert len(written) == 1
    assert len(folders) == 4
    assert len(set(folders)) == 1


def test_hosts_without_locks_agree_on_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "FileLock", contextlib.nullcontext)

    def write(content: str) -> Callable[[Path], None]:
        def fill(folder: Path) -> None:
            (folder / "file").write_text(content)

        return fill

    def slow(folder: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(disk_cache.socket, "gethostname", lambda: "other")
            disk_cache.cached(tmp_path, ["python-docs"], [], write("first"))
        write("second")(folder)

    folder = disk_cache.cached(tmp_path, ["python-docs"], [], slow)
    assert (folder / "file").read_text() == "first"
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == [folder]


# Packing


def flat(sizes: Iterable[int]) -> tuple[np.ndarray, np.ndarray]:
    """Documents of these sizes, in which each token is another one."""
    ends = np.cumsum(list(sizes))
    return np.arange(10, 10 + ends[-1], dtype=np.uint16), ends


def plainly(
    tokens: np.ndarray, ends: np.ndarray, epoch: packing.Epoch, seq: int
) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """All rows of the stream, one token after the other."""
    stream = []
    for end in epoch.sources.tolist():
        begin = max([0, *(e for e in ends.tolist() if e < end)])
        document = tokens[begin:end].tolist()
        stream += zip(document, [*document[1:], model.IGNORE], strict=True)
    stream = stream[epoch.shift :] + stream[: epoch.shift]
    for start in range(0, len(stream), seq):
        row, segment, segments = stream[start : start + seq], 1, []
        for _, target in row:
            segments.append(segment)
            segment += target == model.IGNORE
        empty = seq - len(row)
        yield (
            [token for token, _ in row] + [0] * empty,
            [target for _, target in row] + [model.IGNORE] * empty,
            segments + [0] * empty,
        )


@pytest.mark.parametrize("seq", [1, 4, 7, 64])
@pytest.mark.parametrize("sizes", [[40], [1, 1, 1, 5], [3, 20, 1, 9, 2, 8], [8, 8, 8, 8]])
def test_packing_matches_one_token_after_the_other(sizes: list[int], seq: int) -> None:
    tokens, ends = flat(sizes)
    for epoch in (packing.in_order(ends, seq), packing.shuffled(ends, seq, (3, 0))):
        count = len(epoch.rows)
        packed = packing.pack(tokens, epoch, np.arange(count + 1), seq)
        assert all(part.dtype == np.int32 for part in packed)
        expected = list(plainly(tokens, ends, epoch, seq))
        assert len(expected) == count
        for i, row in enumerate(expected):
            assert tuple(part[i].tolist() for part in packed) == row
        past = tuple(set(part[count].tolist()) for part in packed)
        assert past == ({0}, {model.IGNORE}, {0})


@pytest.mark.parametrize("seq", [1, 4, 7])
def test_each_token_once_an_epoch(seq: int) -> None:
    tokens, ends = flat([3, 20, 1, 9, 2, 8])
    epoch = packing.shuffled(ends, seq, (0, 1))
    assert sorted(epoch.rows) == list(range(-(-len(tokens) // seq)))
    seen, targets, segments = packing.pack(tokens, epoch, epoch.rows, seq)
    assert sorted(seen[segments > 0]) == tokens.tolist()
    followed = set(tokens.tolist()) - set(tokens[ends - 1].tolist())
    assert sorted(seen[targets != model.IGNORE]) == sorted(followed)
    assert (targets - seen)[targets != model.IGNORE].tolist() == [1] * len(followed)


def test_the_order_is_that_of_earlier_releases() -> None:
    tokens, ends = flat([3, 2, 4, 1, 6])
    rows = []
    for number in range(2):
        epoch = packing.shuffled(ends, 6, (0, number))
        rows += packing.pack(tokens, epoch, epoch.rows, 6)[0].tolist()
    assert rows == [
        *([20, 21, 22, 23, 0, 0], [24, 25, 19, 15, 16, 17], [18, 13, 14, 10, 11, 12]),
        *([15, 16, 17, 18, 10, 11], [12, 19, 20, 21, 0, 0], [22, 23, 24, 25, 13, 14]),
    ]


# The reader


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


def test_batches_depend_on_seed_and_step_only(run: Path) -> None:
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
def test_epochs_follow_each_other_without_a_gap(run: Path, batch: int) -> None:
    single = Reader(config_of(run, batch=1), run)
    r = Reader(config_of(run, batch=batch), run)
    for step in (0, 1, 50):
        rows = [single.batch(step * batch + i) for i in range(batch)]
        assert equal(model.Batch(*map(torch.cat, zip(*rows, strict=True))), r.batch(step))


def test_epochs_differ_in_order_alone(run: Path) -> None:
    r = Reader(config_of(run, batch=1), run)
    total = int(re.match(r"([\d,]+) tokens of", str(r))[1].replace(",", ""))  # pyright: ignore[reportOptionalSubscript]
    rows = -(-total // 32)
    epochs = [[r.batch(step) for step in range(e * rows, (e + 1) * rows)] for e in range(2)]
    tokens = [real(epoch) for epoch in epochs]
    assert [len(seen) for seen in tokens] == [total, total]
    assert torch.equal(tokens[0].sort().values, tokens[1].sort().values)
    rows_of = [{tuple(b.tokens[0].tolist()) for b in epoch} for epoch in epochs]
    assert len(rows_of[0] & rows_of[1]) < rows // 10


def test_held_out_documents_are_never_trained_on(run: Path) -> None:
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


def test_all_that_is_held_out_comes_once(run: Path) -> None:
    r = Reader(config_of(run), run)
    batches = [r.held_out(i) for i in range(r.held_out_batches)]
    tokens = real(batches)
    assert f"{len(tokens):,} of {int((tokens == 0).sum())} held out" in str(r)
    assert len(tokens) < sum(batch.tokens.numel() for batch in batches)
    for number in (-1, r.held_out_batches):
        with pytest.raises(IndexError, match=rf"no batch {number}: \d+ are held out"):
            r.held_out(number)


def test_a_given_tokenizer(run: Path, trained: Path) -> None:
    r = Reader(config_of(run, tokenizer=str(trained)), run)
    assert r.tokenizer.digest == tokenizer.load(trained).digest
    assert "the quick" in texts_of(r, [r.batch(0)])


def test_the_tokenizer_is_trained_on_what_is_not_held_out(
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


def test_the_state_goes_through_json(run: Path) -> None:
    r = Reader(config_of(run), run)
    state = json.loads(json.dumps(r.state(12)))
    assert state["step"] == 12
    assert Reader(config_of(run), run).go_on(state) == ""


def test_other_data_is_refused(run: Path, tmp_path: Path) -> None:
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
def test_settings_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
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
def test_too_little_text(tmp_path: Path, trained: Path, text: str, message: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    config = config_of(tmp_path, files=(str(tmp_path / "a.txt"),), tokenizer=str(trained))
    with pytest.raises(DataError, match=message):
        Reader(config, tmp_path)


def test_text_without_a_letter_trains_no_tokenizer(tmp_path: Path) -> None:
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


def test_an_error_of_the_thread_is_raised_and_the_thread_ends() -> None:
    def batch(step: int) -> Any:
        if step == 2:
            raise DataError("damaged")
        return step

    got: list[Any] = []
    with pytest.raises(DataError, match="damaged"):
        got.extend(reader.prefetch(batch, range(9)))
    assert got == [0, 1]
    assert not [t for t in threading.enumerate() if t.name.startswith("reader")]


def test_closing_ends_the_thread() -> None:
    batches = reader.prefetch(lambda step: step, range(10**9))  # pyright: ignore[reportArgumentType]
    assert next(batches) == 0
    assert [t for t in threading.enumerate() if t.name.startswith("reader")]
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("reader")]


# With the model


@pytest.mark.parametrize("plan", [Plan(attention="dense"), Plan(block=8)], ids=["dense", "blocks"])
def test_packed_documents_have_the_losses_they_have_alone(plan: Plan) -> None:
    config = model.Config.tiny(vocab=64)
    params = model.init(config, seed=1, dtype=torch.float64)
    tokens, ends = flat([5, 9, 2, 16])
    packed = packing.pack(tokens % 64, packing.in_order(ends, 40), np.arange(1), 40)
    row = model.Batch(*map(torch.from_numpy, packed))

    @xf.jit
    def forward(params: Any, tokens: torch.Tensor, segments: torch.Tensor | None) -> torch.Tensor:
        return model.forward(params, tokens, config, plan, segments)

    def losses(batch: model.Batch) -> torch.Tensor:
        """Of each token that has a target, in the order of the row."""
        logits = forward(params, batch.tokens, batch.segments)
        chosen = batch.targets.long().clamp(min=0)[..., None]
        found = -xf.device_get(logits).log_softmax(-1).gather(-1, chosen)[..., 0]
        return found[batch.targets != model.IGNORE]

    rows = np.zeros((4, 17), np.int64)
    targets = np.full((4, 17), model.IGNORE)
    for i, document in enumerate(np.split(tokens % 64, ends[:-1])):
        rows[i, : len(document)] = document
        targets[i, : len(document) - 1] = document[1:]
    ones = torch.ones(4, 17, dtype=torch.int32)
    alone = losses(model.Batch(torch.from_numpy(rows), torch.from_numpy(targets), ones))
    together = losses(row)
    assert (together.dtype, len(together)) == (torch.float64, 28)
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)
    merged = losses(row._replace(segments=torch.ones(1, 40, dtype=torch.int32)))
    assert not torch.allclose(merged, together, rtol=1e-3)
