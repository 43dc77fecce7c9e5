"""Files of several parts, which are checked when they are read.

A file is a ZIP archive with one more part that holds the SHA-256 of each, so that damaged files are
never used. Nothing is pickled: reading a file never runs code from it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

SUMS = "checksums.json"
_MOST = 1032  # DEFLATE's largest compression ratio


def keep(file: Path, data: bytes, what: str) -> None:
    """Write a file for other processes, or warn once that `what` cannot be stored in its folder."""
    try:
        _write_whole(file, data)
    except OSError as error:
        _warn(what, str(file.parent), error.strerror or str(error))


@functools.cache
def _warn(what: str, folder: str, why: str) -> None:
    """Once per folder and reason."""
    warnings.warn(f"{what} cannot be kept in {folder}: {why}", stacklevel=2)


def _write_whole(file: Path, data: bytes) -> None:
    """Write a file atomically: other processes see the old or the new contents."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent)
    try:
        with open(handle, "wb") as opened:
            opened.write(data)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def packed(parts: Mapping[str, bytes]) -> bytes:
    """The bytes of a file; the same each time."""
    sums = json.dumps({n: _sum(data) for n, data in parts.items()}, indent=1).encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**parts, SUMS: sums}.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    """The parts of a file, and `SUMS`; files written before checksums have none.

    Raises:
        zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, RuntimeError: not an archive.
        LookupError, ValueError, TypeError, AttributeError: damaged contents.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = archive.infolist()
        for info in infos:
            if info.file_size > _MOST * min(info.compress_size, len(data)) + 64:
                raise ValueError(f"{info.filename} claims to be {info.file_size} bytes")
        names = [i.filename for i in infos]
        if len(set(names)) < len(names):
            raise LookupError("it holds a part twice")
        contents = {name: archive.read(name) for name in names}
    if SUMS in contents:
        sums = json.loads(contents[SUMS])
        check_names(contents, set(sums))
        for name in sums:
            if sums[name] != _sum(contents[name]):
                raise ValueError(f"{name} is not what was written")
    return contents


def check_names(contents: Mapping[str, bytes], expected: set[str]) -> None:
    """Raise LookupError unless a file holds these parts."""
    names = contents.keys() - {SUMS}
    if names != expected:
        raise LookupError(f"it holds {', '.join(map(repr, sorted(names)[:9]))}")


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
