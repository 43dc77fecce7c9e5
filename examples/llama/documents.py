"""Documents: from text, JSON and parquet files, or from the language reference inside Python.

A text file is one document, and so are a line of JSON lines and a row of parquet.
Hugging Face's `datasets` reads them, a file at a time and without a copy of its own on disk.
"""

import glob
import hashlib
import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

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
_BLANK = object()
_COMPRESSED = (".gz", ".bz2", ".xz")


class DataError(ValueError):
    """The data cannot be used as it is; the message says which, and what to do."""


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
            raise DataError(
                f"{file} is a table, and none is read but parquet and JSON: write it as JSON lines"
            )
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


def read(files: Iterable[str], field: str = "text") -> Iterator[str]:
    """The documents of files that `find` found; `field` holds them where there are fields.

    A null is an empty document.
    """
    for file in files:
        if file == PYTHON_DOCS:
            yield from _python_docs()
            continue
        unit = _unit(file)
        for number, row in _rows(file, field):
            if not isinstance(row, dict) or field not in row:
                fields = ", ".join(row) if isinstance(row, dict) else "nothing"
                raise DataError(
                    f"{unit} {number} of {file} has no field {field!r}: "
                    f"set data.field to what holds the text, of {fields}"
                )
            if not isinstance(row[field], str | None):
                raise DataError(
                    f"{unit} {number} of {file} has a {type(row[field]).__name__} for {field!r}: "
                    f"set data.field to what holds the text"
                )
            # JSON may have one half of a surrogate pair, which no UTF-8 has: it becomes a "?".
            yield (row[field] or "").encode(errors="replace").decode()


def _unit(file: str) -> str:
    return "line" if _kind(Path(file)) == "lines" else "document"


def _rows(file: str, field: str) -> Iterator[tuple[int, Any]]:
    """What a file holds, with the number of its line or document; no blank lines."""
    with tempfile.TemporaryDirectory() as locks:  # `datasets` leaves a lock for each file it reads
        number = 0
        try:
            for row in _open(file, field, locks):
                if _unit(file) == "line":
                    # `from_json` wants the same fields of the same types all through a file.
                    row = json.loads(row["text"]) if row["text"] else _BLANK
                number += 1
                if row is not _BLANK:
                    yield number, row
        except Exception as error:
            reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            raise DataError(
                f"cannot read {file} after {number} {_unit(file)}s: {reason}. "
                "Mend it, or leave it out"
            ) from error


def _open(file: str, field: str, locks: str) -> Iterable[Any]:
    import datasets  # Late: it takes a second, and tokens that are on disk already do without.

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # What it logs, it raises too.
    how: dict[str, Any] = {"streaming": True, "cache_dir": locks}
    kind = _kind(Path(file))
    if kind == "lines":
        lines: Any = datasets.Dataset.from_text(file, **how)
        return lines
    if kind == "json":
        return datasets.Dataset.from_json(file, **how)
    if kind == "parquet":
        rows = datasets.Dataset.from_parquet(file, **how)
        columns = [field] if field in rows.column_names else None
        return datasets.Dataset.from_parquet(file, columns=columns, **how)
    texts: Any = datasets.Dataset.from_text(file, sample_by="document", **how)
    return ({field: text["text"]} for text in texts)


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
