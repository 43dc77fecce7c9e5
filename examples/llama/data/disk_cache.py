"""Folders of results computed from data files, found again by what they were computed from."""

import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from fsspec.core import url_to_fs

from ..files import written
from .documents import PYTHON_DOCS

_FORMAT = 2  # of the folders' contents; folders of another format are not used
_SUMS = "sha256.json"


def cached(
    cache: Path,
    files: Sequence[str],
    settings: Sequence[Any],
    write: Callable[[Path], None],
    say: Callable[[str], object] = lambda text: None,
) -> Path:
    """The folder in `cache` that `write` fills from `files` and `settings`; it is made only once.

    Files are identified by name, size and time, those behind a URL by fsspec's `ukey`, so finding
    the folder reads none of them. The folder's contents are compared with their checksums: if they
    are damaged, `say` is called and the folder is made again.
    """
    made_from = json.dumps([_FORMAT, [_stamp(f) for f in files], *settings])
    folder = cache / hashlib.sha256(made_from.encode()).hexdigest()[:32]
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # Of hosts that share a disk, one does the work.
        if folder.is_dir() and (damage := _damage(folder)):
            say(f"{folder} is damaged and is made again: {damage}")
            shutil.rmtree(folder)
        if not folder.is_dir():
            _make(folder, write)
    return folder


def _make(folder: Path, write: Callable[[Path], None]) -> None:
    # A folder with the final name is complete. Where a shared disk has no locks, several hosts may
    # get here: each fills a folder of its own, and the first to finish renames it.
    partial = folder.with_name(f"{folder.name}.{socket.gethostname()}.partial")
    try:
        with written(folder, partial):
            partial.mkdir()
            write(partial)
            sums = {path.name: _sum(path) for path in partial.iterdir()}
            (partial / _SUMS).write_text(json.dumps(sums), "utf-8")
    except OSError:
        if not folder.is_dir():
            raise


def _damage(folder: Path) -> str:
    """What is wrong with the files of a folder; empty if nothing is."""
    try:
        sums = json.loads((folder / _SUMS).read_text("utf-8"))
        wrong = [name for name, expected in sums.items() if _sum(folder / name) != expected]
    except (OSError, ValueError, AttributeError) as error:
        return str(error)
    return f"the checksums of {', '.join(wrong)} differ" if wrong else ""


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(file: str) -> list[Any]:
    if file == PYTHON_DOCS:
        return [file, sys.version]
    if "://" in file:
        system, path = url_to_fs(file)
        return [file, system.ukey(path)]
    status = os.stat(file)
    return [file, status.st_size, status.st_mtime_ns]
