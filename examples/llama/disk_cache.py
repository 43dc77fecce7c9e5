"""Folders of what was computed from data files, found again by what they were made from."""

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

from .documents import PYTHON_DOCS

_FORMAT = 1  # of what is in the folders; those of another format are not used


def cached(
    cache: Path, files: Sequence[str], settings: Sequence[Any], write: Callable[[Path], None]
) -> Path:
    """The folder that `write` fills from `files` and `settings`, in `cache`, made once.

    Files are known by name, size and time, so that finding the folder reads none of them.
    """
    made_from = json.dumps([_FORMAT, [_stamp(f) for f in files], *settings])
    folder = cache / hashlib.sha256(made_from.encode()).hexdigest()[:32]
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # Of the hosts that share a disk, one does the work.
        if not folder.is_dir():
            _make(folder, write)
    return folder


def _make(folder: Path, write: Callable[[Path], None]) -> None:
    # A folder of the right name is whole. Where a shared disk has no locks, several hosts may come
    # here: each fills a folder of its own, and the first to finish gives it the name.
    partial = folder.with_name(f"{folder.name}.{socket.gethostname()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    write(partial)
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)
        if not folder.is_dir():
            raise


def _stamp(file: str) -> list[Any]:
    if file == PYTHON_DOCS:
        return [file, sys.version]
    status = os.stat(file)
    return [file, status.st_size, status.st_mtime_ns]
