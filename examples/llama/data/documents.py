"""Documents: from text, JSON and parquet files, or from the language reference inside Python.

A text file is one document, as is each line of a JSON lines file and each row of a parquet file.
fsspec opens files, also those elsewhere (`hf://`, `s3://`, `gs://`), which are read as streams: no
copy is made on disk.
"""

import bz2
import contextlib
import functools
import gzip
import hashlib
import io
import itertools
import json
import lzma
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from pydoc_data.topics import topics
from typing import Any, TypeVar

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

T = TypeVar("T")
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
PYTHON_DOCS = "python-docs"  # the topics of `help('with')` and the like: no download
_KINDS = {
    ".txt": "text",
    ".md": "text",
    ".json": "json",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".parquet": "parquet",
}
_TABLES = (".csv", ".tsv", ".xls", ".xlsx")  # as text they would be one document with commas in it
_BUFFER = 1 << 20  # bytes
_RECORDS = 64  # given to a process at once


def _zstd(file: Any) -> Any:
    import pyarrow  # Imported late: it takes a while, and other files do not need it.

    return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))


_COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _zstd,
}


class DataError(ValueError):
    """The data cannot be used as it is; the message says why, and what to do."""


class BadRecordError(DataError):
    """One record cannot be used; the message says why, and what to do."""

    def __init__(self, problem: str, hint: str):
        super().__init__(problem, hint)
        self.problem = problem

    def __str__(self) -> str:
        return "".join(self.args)


def find(sources: Sequence[str]) -> list[str]:
    """The files that `sources` stand for: each a file, a folder, a pattern, or `python-docs`.

    A folder stands for all files below it with a known extension, except hidden ones. Files are in
    the order of `sources`, and sorted by name within each.
    """
    return list(dict.fromkeys(file for source in sources for file in _files(source)))


def _files(source: str) -> list[str]:
    if source == PYTHON_DOCS:
        return [source]
    try:
        system, path = url_to_fs(source)
        if system.isdir(path):
            below = (f for f in system.find(path) if _kind(f) is not None)
            found = [f for f in below if not any(p[:1] == "." for p in f[len(path) :].split("/"))]
        elif system.exists(path):
            found = [path]
        else:
            matches: Any = system.glob(path, detail=True)
            found = [name for name, about in matches.items() if about["type"] == "file"]
    except Exception as error:  # Each file system raises others.
        raise DataError(f"cannot find {source!r}: {error}") from error
    local = isinstance(system, LocalFileSystem)
    files = sorted(f if local else system.unstrip_protocol(f) for f in found)
    for file in files:
        if {s.lower() for s in PurePath(file).suffixes[-2:]} & {*_TABLES} and _kind(file) is None:
            raise DataError(f"{file} is a table in an unsupported format: convert it to JSON lines")
    if not files:
        endings = " ".join(_KINDS)
        raise DataError(
            f"no data at {source!r}: give a file, a folder with files that end in {endings} "
            f"(also {' '.join(_COMPRESSED)}), a pattern such as 'data/**/*.jsonl', "
            f"or {PYTHON_DOCS!r}"
        )
    return files


def _kind(name: str) -> str | None:
    file = PurePath(name)
    ending = PurePath(file.stem).suffix if file.suffix in _COMPRESSED else file.suffix
    return _KINDS.get(ending.lower())


def size(files: Iterable[str]) -> int:
    """How many bytes the files have."""
    found = (url_to_fs(file) for file in files if file != PYTHON_DOCS)
    return sum(system.size(path) or 0 for system, path in found)


def read(
    files: Iterable[str], field: str = "text", leave_out: Callable[[str], object] | None = None
) -> Iterator[str]:
    """The documents in files returned by `find`.

    Args:
        files: their names.
        field: the field that holds the text; a null is an empty document.
        leave_out: called with what is wrong with each record that has no text or is unreadable;
            None: the first one is an error. A file that cannot be read any further always is.
    """
    for file in files:
        if file == PYTHON_DOCS:
            yield from _python_docs()
        else:
            yield from records([file], (field,), functools.partial(_text, field), leave_out)


def records(
    files: Iterable[str],
    fields: Sequence[str],
    made: Callable[[Any, str], T],
    leave_out: Callable[[str], object] | None = None,
    mapped: Map = map,
) -> Iterator[T]:
    """What `made` returns for each record: a row of a table, a JSON object, or the text of a file.

    It is called with a record and its location, by `mapped`, which is like the builtin, and may
    raise a `DataError`; of a `BadRecordError`, `leave_out` is told as by `read`. Of a table, those
    of `fields` are read that it has.
    """
    located = (
        (row, f"{unit} {number} of {file}")
        for file in files
        for unit in ["line" if _kind(file) == "lines" else "document"]
        for number, row in _rows(file, fields, unit)
    )
    several = _several(located, 1 if mapped is map else _RECORDS)
    with contextlib.closing(located):  # and files, also if an error holds this frame
        for found in itertools.chain.from_iterable(mapped(functools.partial(_each, made), several)):
            if isinstance(found, BadRecordError) and leave_out is not None:
                leave_out(found.problem)
            elif isinstance(found, DataError):
                raise found
            else:
                yield found


def _several(located: Iterator[T], size: int) -> Iterator[list[T]]:
    """Lists of so many; the last one is shorter, also before an error."""
    found: list[T] = []
    try:
        for one in located:
            found.append(one)
            if len(found) == size:
                yield found
                found = []
    except DataError:
        yield found
        raise
    yield found


def _each(made: Callable[[Any, str], T], located: Iterable[tuple[Any, str]]) -> list[T | DataError]:
    """What `made` returns for each record, or raises; bytes are a line of JSON."""
    found: list[T | DataError] = []
    for row, where in located:
        try:
            record = json.loads(row) if isinstance(row, bytes) else row
        except (ValueError, RecursionError) as error:
            hint = ". Fix it, or set data.skip_bad=true"
            found.append(BadRecordError(f"cannot read {where}: {error}", hint))
            continue
        try:
            found.append(made(record, where))
        except DataError as error:
            found.append(error)
    return found


def _text(field: str, row: Any, where: str) -> str:
    """The text of one record."""
    if not isinstance(row, dict) or field not in row:
        fields = ", ".join(row) if isinstance(row, dict) else "nothing"
        raise BadRecordError(
            f"{where} has no field {field!r}",
            f": set data.field to the field with the text, one of {fields}",
        )
    if not isinstance(row[field], str | None):
        raise BadRecordError(
            f"{where} has a {type(row[field]).__name__} for {field!r}",
            ": set data.field to the field with the text",
        )
    # JSON may hold half of a surrogate pair, which UTF-8 cannot encode: it becomes a "?".
    return (row[field] or "").encode(errors="replace").decode()


def _rows(file: str, fields: Sequence[str], unit: str) -> Iterator[tuple[int, Any]]:
    """The records of a file, each with its line or document number; blank lines are left out."""
    number = 0
    try:
        for row in _open(file, fields):
            number += 1
            if not isinstance(row, bytes) or row.strip():
                yield number, row
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise DataError(
            f"cannot read {file} after {number} {unit}s: {reason}. Fix it, or remove it"
        ) from error


def _open(file: str, fields: Sequence[str]) -> Iterator[Any]:
    kind = _kind(file)
    if kind == "parquet":
        yield from _parquet(file, fields)
        return
    system, path = url_to_fs(file)
    with contextlib.ExitStack() as stack:
        stored = stack.enter_context(system.open(path, "rb"))
        content: Any = stack.enter_context(io.BufferedReader(stored, _BUFFER))
        if (ending := PurePath(file).suffix) in _COMPRESSED:
            content = stack.enter_context(_COMPRESSED[ending](content))
        if kind == "lines":
            yield from (line.rstrip(b"\r\n") for line in content)
        elif kind == "json":
            yield from _json(content)
        else:
            text = stack.enter_context(io.TextIOWrapper(content, "utf-8"))
            yield {fields[0]: text.read()}


def _json(content: Any) -> Iterator[Any]:
    """The items of an array, or the lines of a file that has one object on each."""
    line = next((line for line in content if line.strip()), b"[]")
    try:
        found = json.loads(line)
    except ValueError:
        found = json.loads(line + content.read())
    if isinstance(found, list):
        yield from found
    else:
        yield found
        yield from content


def _parquet(file: str, fields: Sequence[str]) -> Iterator[Any]:
    import datasets  # Imported late: it takes a second, and cached tokens do not need it.

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # It also raises what it logs.
    with tempfile.TemporaryDirectory() as locks:  # It leaves a lock for each file that it reads.
        how: dict[str, Any] = {"streaming": True, "cache_dir": locks}
        rows = datasets.Dataset.from_parquet(file, **how)
        columns = [field for field in fields if field in rows.column_names] or None
        yield from datasets.Dataset.from_parquet(file, columns=columns, **how)


def _python_docs() -> Iterator[str]:
    seen: dict[str, None] = {}  # Some paragraphs appear in several topics.
    for name in sorted(topics):
        paragraphs = dict.fromkeys(topics[name].strip().split("\n\n"))
        yield "\n\n".join(p for p in paragraphs if p not in seen)
        seen |= paragraphs


def split(documents: Iterable[str], held_out: float) -> Iterator[tuple[str, bool]]:
    """Each document, and whether it is held out from training.

    A hash of each document decides, so the choice stays the same when others are added. If fewer
    than ten or so would be held out, each document is cut and its last part is held out.
    """
    documents = iter(documents)
    first = list(itertools.islice(documents, math.ceil(10 / held_out)))
    if len(first) * held_out < 10:
        for document in first:
            cut = round(len(document) * (1 - held_out))
            yield document[:cut], False
            yield document[cut:], True
        return
    for document in itertools.chain(first, documents):
        digest = hashlib.blake2b(document.encode(), digest_size=8).digest()
        yield document, int.from_bytes(digest) < held_out * 2**64
