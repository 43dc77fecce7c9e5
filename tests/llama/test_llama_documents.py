"""Documents of the Llama example: files and their formats, folders, what is held out."""

import bz2
import gzip
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from examples.llama.data import documents
from examples.llama.data.documents import DataError
from tests.llama.texts import lines


@pytest.fixture
def bucket() -> Iterator[Any]:
    """A file system that is not the disk's."""
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


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
        ("a.jsonl.zst", zstd(lines({"text": "a"}, {"text": "b"})), ["a", "b"]),
        ("a.jsonl.zst", zstd(lines({"text": "a"})) + zstd(lines({"text": "b"})), ["a", "b"]),
        ("a.txt.zst", zstd("déjà\r\nvu".encode()), ["déjà\nvu"]),
        ("a.jsonl", b"", []),
        ("a.json", json.dumps([{"text": "a"}, {"text": "b"}]).encode(), ["a", "b"]),
        ("a.JSON", lines({"text": "a", "n": 1}, {"text": "b", "n": 2}), ["a", "b"]),
        ("a.json", json.dumps({"text": "a"}, indent=2).encode(), ["a"]),
        ("a.json", b"", []),
        ("a.json.gz", gzip.compress(lines({"text": "a"}, {"text": "b"}), mtime=0), ["a", "b"]),
        ("a.json.zst", zstd(json.dumps([{"text": "a"}, {"text": "b"}]).encode()), ["a", "b"]),
        ("a.parquet", parquet(n=[1, 2], text=["a", None]), ["a", ""]),
    ],
)
def test_documents_read_formats(
    tmp_path: Path, bucket: Any, name: str, content: bytes, expected: list[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert list(documents.read([str(tmp_path / name)])) == expected
    bucket.pipe(f"/{name}", content)
    assert list(documents.read([f"memory://{name}"])) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", lines({"body": "a", "text": 1})),
        ("a.json", lines({"body": "a", "text": 1})),
        ("a.parquet", parquet(body=["a"], text=[1])),
    ],
)
def test_documents_read_another_field(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert list(documents.read([str(tmp_path / name)], "body")) == ["a"]


def test_documents_read_json_types_change_late_in_file(tmp_path: Path) -> None:
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
        ("a.jsonl.zst", zstd(lines({"text": "a"}))[:-9], "after 0 lines: Truncated compressed"),
    ],
)
def test_documents_read_errors(
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


def test_documents_find_folders_and_patterns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_documents_find_behind_urls(tmp_path: Path, bucket: Any) -> None:
    for name in ("a.jsonl", "sub/b.jsonl.zst", "sub/c.parquet", "note", ".git/d.txt"):
        bucket.pipe(f"/data/{name}", b"")
    every = ["a.jsonl", "sub/b.jsonl.zst", "sub/c.parquet"]
    assert documents.find(["memory://data"]) == [f"memory:///data/{name}" for name in every]
    assert documents.find(["memory://data/sub/*.zst"]) == ["memory:///data/sub/b.jsonl.zst"]
    assert documents.find(["memory://data/**/*.jsonl"]) == ["memory:///data/a.jsonl"]
    assert documents.find(["memory://data/note"]) == ["memory:///data/note"]
    (tmp_path / "a.txt").write_text("a")
    assert documents.find([f"file://{tmp_path}/*.txt"]) == [f"{tmp_path}/a.txt"]
    with pytest.raises(DataError, match=r"no data at 'memory://data/\*\.txt': give a file"):
        documents.find(["memory://data/*.txt"])
    with pytest.raises(DataError, match=r"cannot find 'nowhere://a': Protocol not known: nowhere"):
        documents.find(["nowhere://a"])
    fsspec.register_implementation(
        "absent", "no_such_package.System", errtxt="Install no_such_package", clobber=True
    )
    with pytest.raises(DataError, match=r"cannot find 'absent://a': Install no_such_package"):
        documents.find(["absent://a"])


def test_documents_python_docs_paragraphs_are_unique() -> None:
    texts = list(documents.read(["python-docs"]))
    assert sum(map(len, texts)) > 300_000
    assert any("compound statement" in text for text in texts)
    paragraphs = [p for text in texts if text for p in text.split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs)


def test_documents_split_stable_when_documents_are_added() -> None:
    texts = [f"document {i}" for i in range(300)]
    held = {text for text, held in documents.split(texts, 0.1) if held}
    assert 15 <= len(held) <= 45
    more = [f"new {i}" for i in range(300)] + texts[::-1]
    again = list(documents.split(more, 0.1))
    assert [text for text, _ in again] == more
    assert {text for text, held in again if held} & set(texts) == held


def test_documents_split_few_documents_holds_out_ends() -> None:
    assert list(documents.split(["0123456789", "ab"], 0.2)) == [
        ("01234567", False),
        ("89", True),
        ("ab", False),
        ("", True),
    ]
    assert len(list(documents.split(["x"] * 99, 0.1))) == 198
    assert len(list(documents.split(["x"] * 100, 0.1))) == 100
