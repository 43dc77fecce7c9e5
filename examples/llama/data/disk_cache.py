"""Folders of results computed from data files, found again by what they were computed from."""

import hashlib
import json
import math
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock
from fsspec.core import url_to_fs

from ..files import sha256, written
from .documents import PYTHON_DOCS, DataError

_FORMAT = 3  # of the folders' contents; folders of another format are not used
_SUMS = "sha256.json"  # for each file its sum and its size
AT_ONCE = 1 << 26  # bytes that are compared with their checksums before a folder is used


class Cached(NamedTuple):
    """A folder of results, and what is found to be wrong with it, which may take a while."""

    folder: Path
    damage: "Future[str]"

    def check(self, *, wait: bool = True) -> None:
        """Raise an error if the folder is damaged; without `wait`, if that is known already."""
        if (wait or self.damage.done()) and (damage := self.damage.result()):
            (self.folder / _SUMS).unlink(missing_ok=True)  # So it is made again.
            raise DataError(
                f"{self.folder} is damaged, and was read: {damage}. Run the command again, which "
                "makes it again; fit continues from its last checkpoint"
            )


def cached(
    cache: Path,
    files: Sequence[str],
    settings: Sequence[Any],
    write: Callable[[Path], None],
    say: Callable[[str], object] = lambda text: None,
) -> Cached:
    """The folder in `cache` that `write` fills from `files` and `settings`; it is made only once.

    Files are identified by name, size and time, or by fsspec's `ukey`. A damaged folder is made
    again. The checksums of one larger than `AT_ONCE` are computed in a thread.
    """
    made_from = json.dumps([_FORMAT, [_stamp(f) for f in files], *settings])
    folder = cache / hashlib.sha256(made_from.encode()).hexdigest()[:32]
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # Of hosts that share a disk, one does the work.
        if folder.is_dir() and (damage := _damage(folder, AT_ONCE)):
            say(f"{folder} is damaged and is made again: {damage}")
            shutil.rmtree(folder)
        size = sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0
        if not folder.is_dir():
            _make(folder, write)
    damage = Future[str]()
    if size > AT_ONCE:
        # A daemon: a program that ends does not wait for it.
        threading.Thread(
            target=lambda: damage.set_result(_damage(folder)), name="checksums", daemon=True
        ).start()
    else:
        damage.set_result("")
    return Cached(folder, damage)


def _make(folder: Path, write: Callable[[Path], None]) -> None:
    # Where a shared disk has no locks, several hosts may get here: each fills a folder of its own,
    # and the first to finish renames it.
    partial = folder.with_name(f"{folder.name}.{socket.gethostname()}.partial")
    try:
        with written(folder, partial):
            partial.mkdir()
            write(partial)
            sums = {path.name: [sha256(path), path.stat().st_size] for path in partial.iterdir()}
            (partial / _SUMS).write_text(json.dumps(sums), "utf-8")
    except OSError:
        if not folder.is_dir():
            raise


def _damage(folder: Path, most: float = math.inf) -> str:
    """What is wrong with the files of a folder; empty if nothing is.

    If they have more than `most` bytes, only their sizes are compared.
    """
    try:
        known = json.loads((folder / _SUMS).read_text("utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in known}
        wrong = [name for name, (_, size) in known.items() if size != sizes[name]]
        if wrong:
            return f"the sizes of {', '.join(wrong)} differ"
        if sum(sizes.values()) > most:
            return ""
        wrong = [name for name, (expected, _) in known.items() if sha256(folder / name) != expected]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return str(error)
    return f"the checksums of {', '.join(wrong)} differ" if wrong else ""


def _stamp(file: str) -> list[Any]:
    if file == PYTHON_DOCS:
        return [file, sys.version]
    if "://" in file:
        system, path = url_to_fs(file)
        return [file, system.ukey(path)]
    status = os.stat(file)
    return [file, status.st_size, status.st_mtime_ns]
