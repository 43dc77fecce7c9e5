"""Results of compiling, kept on disk: one file each, named by a hash of all its inputs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

LIMIT = 4 * 2**30
"""Bytes that all results may take together; the least recently used are removed first."""


def folder() -> Path:
    """The folder where results are kept.

    In ``$XFUNC_CACHE_DIR``, or ``xfunc`` in the user's cache folder (``$XDG_CACHE_HOME``, or
    ``~/.cache``).
    """
    given = os.environ.get("XFUNC_CACHE_DIR")
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(given or os.path.join(root, "xfunc")) / "aot"


def path_of(key: str) -> Path:
    """The file of a result, whether or not it exists."""
    return folder() / f"{key}.zip"


def keep(key: str, result: Path) -> None:
    """Copy a result into the cache; a full or read-only disk is not an error."""
    path = path_of(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        try:
            shutil.copyfile(result, name)
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
        _trim(path)


def used(key: str) -> None:
    """Record the use of a result, so that it is kept longer than others."""
    with contextlib.suppress(OSError):
        os.utime(path_of(key))


def _trim(newest: Path) -> None:
    entries = [(p.stat(), p) for p in newest.parent.iterdir()]
    total = sum(stat.st_size for stat, _ in entries)
    for stat, path in sorted(entries, key=lambda e: e[0].st_mtime):
        if total <= LIMIT:
            return
        if path != newest:
            path.unlink(missing_ok=True)
            total -= stat.st_size
