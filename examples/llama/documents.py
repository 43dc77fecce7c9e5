"""Documents: from text, JSON and parquet files, or from the language reference inside Python.

A text file is one document, and so are a line of JSON lines and a row of parquet.
Hugging Face's `datasets` reads all but the lines, a file at a time and without a copy of its own on
disk.
"""

import bz2
import functools
import glob
import gzip
import hashlib
import itertools
import json
import lzma
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, TypeVar

T = TypeVar("T")
PYTHON_DOCS = "python-docs"  # what is documented there, `help('with')`, needs no download
_KINDS = {
    ".txt": "text",
    ".md": "text",
    ".json": "json",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".parquet": "parquet",
}
_TABLES = (".csv", ".tsv", ".xls", ".xlsx")  # as text they would be one document with commas in it
_COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class DataError(ValueError):
    """The data cannot be used as it is; the message says which, and what to do."""


class BadRecordError(DataError):
    """One record cannot be used: what is wrong with it, and what to do."""

    def __init__(self, problem: str, hint: str):
        super().__init__(problem + hint)
        self.problem = problem


def find(sources: Sequence[str]) -> list[str]:
    """The files that `sources` stand for: each a file, a folder, a pattern, or `python-docs`.

    A folder stands for all files below it whose ending is known and whose path is not hidden.
    The order is that of `sources`, and within each that of the names.
    """
    found = [file for source in sources for file in _files(source)]
    return list(dict.fromkeys(found))


def _files(source: str) -> list[str]:
    path = Path(source).expanduser()
    if source == PYTHON_DOCS:
        return [source]
    if path.is_dir():
        below = (f for f in path.rglob("*") if f.is_file() and _kind(f) is not None)
        shown = (f for f in below if not any(p[0] == "." for p in f.relative_to(path).parts))
        files = sorted(str(f.absolute()) for f in shown)
    else:
        matches = [str(path)] if path.exists() else glob.glob(str(path), recursive=True)
        files = sorted(str(f.absolute()) for f in map(Path, matches) if f.is_file())
    for file in map(Path, files):
        if {s.lower() for s in file.suffixes[-2:]} & {*_TABLES} and _kind(file) is None:
            raise DataError(f"{file} is a table in an unsupported format: convert it to JSON lines")
    if not files:
        endings = " ".join(_KINDS)
        raise DataError(
            f"no data at {source!r}: give a file, a folder with files that end in {endings} "
            f"(also {' '.join(_COMPRESSED)}), a pattern such as 'data/**/*.jsonl', "
            f"or {PYTHON_DOCS!r}"
        )
    return files


def _kind(file: Path) -> str | None:
    ending = Path(file.stem).suffix if file.suffix in _COMPRESSED else file.suffix
    return _KINDS.get(ending.lower())


def read(
    files: Iterable[str], field: str = "text", leave_out: Callable[[str], object] | None = None
) -> Iterator[str]:
    """The documents of files that `find` found.

    Args:
        files: their names.
        field: what holds the text where there are fields. A null is an empty document.
        leave_out: is told of each record that has no text or cannot be read, which is left out;
            None: the first one is an error. A file that cannot be read on is always one.
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
) -> Iterator[T]:
    """What is made of each record: a row of a table, an object of JSON, or the text of a file.

    Args:
        files: their names.
        fields: those that are read of a table, of which it need not have all.
        made: is given a record and where it is; it may raise a `BadRecordError`.
        leave_out: as of `read`.
    """
    for file in files:
        unit = "line" if _kind(Path(file)) == "lines" else "document"
        for number, row in _rows(file, fields, unit):
            where = f"{unit} {number} of {file}"
            try:
                found = made(_parsed(row, where), where)
            except BadRecordError as error:
                if leave_out is None:
                    raise
                leave_out(error.problem)
                continue
            yield found


def _parsed(row: Any, where: str) -> Any:
    """A record: a row, or what a line of JSON holds."""
    if not isinstance(row, bytes):
        return row
    try:
        return json.loads(row)
    except (ValueError, RecursionError) as error:
        raise BadRecordError(
            f"cannot read {where}: {error}", ". Fix it, or set data.skip_bad=true"
        ) from error


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
    # JSON may have one half of a surrogate pair, which no UTF-8 has: it becomes a "?".
    return (row[field] or "").encode(errors="replace").decode()


def _rows(file: str, fields: Sequence[str], unit: str) -> Iterator[tuple[int, Any]]:
    """What a file holds, with the number of its line or document; no blank lines."""
    with tempfile.TemporaryDirectory() as locks:  # `datasets` leaves a lock for each file it reads
        number = 0
        try:
            for row in _open(file, fields, locks):
                number += 1
                if not isinstance(row, bytes) or row.strip():
                    yield number, row
        except Exception as error:
            reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            raise DataError(
                f"cannot read {file} after {number} {unit}s: {reason}. Fix it, or remove it"
            ) from error


def _open(file: str, fields: Sequence[str], locks: str) -> Iterator[Any]:
    kind = _kind(Path(file))
    if kind == "lines":  # `datasets` wants the same fields of the same types all through a file.
        with _COMPRESSED.get(Path(file).suffix, open)(file, "rb") as lines:
            yield from (line.rstrip(b"\r\n") for line in lines)
        return
    import datasets  # Late: it takes a second, and tokens that are on disk already do without.

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # What it logs, it raises too.
    how: dict[str, Any] = {"streaming": True, "cache_dir": locks}
    if kind == "json":
        yield from datasets.Dataset.from_json(file, **how)
    elif kind == "parquet":
        rows = datasets.Dataset.from_parquet(file, **how)
        columns = [field for field in fields if field in rows.column_names] or None
        yield from datasets.Dataset.from_parquet(file, columns=columns, **how)
    else:
        texts: Any = datasets.Dataset.from_text(file, sample_by="document", **how)
        yield from ({fields[0]: text["text"]} for text in texts)


def _python_docs() -> Iterator[str]:
    seen: dict[str, None] = {}  # Some paragraphs come up in several topics.
    for name in sorted(topics):
        paragraphs = dict.fromkeys(topics[name].strip().split("\n\n"))
        yield "\n\n".join(p for p in paragraphs if p not in seen)
        seen |= paragraphs


def split(documents: Iterable[str], held_out: float) -> Iterator[tuple[str, bool]]:
    """Each document, and whether it is held out from training.

    Which are held out depends on a hash of each, so that it stays when others are added. Where
    that would be fewer than ten or so, each document is cut and its last part is held out.
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
