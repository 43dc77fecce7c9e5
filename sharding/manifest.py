"""The files of a checkpoint: their sizes and checksums, and that they are on the disk."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from xfunc.errors import DamagedCheckpointError, format_error

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MANIFEST, EXTRA = "manifest.json", "extra.json"


class Sum(NamedTuple):
    """The size and checksum of a file."""

    size: int
    sha256: str


class SummedFile(io.BufferedWriter):
    """A new file that computes the checksum of its contents as it is written.

    The checksum is computed from the bytes as they are written, not read back from disk, so it also
    detects faults on the way there.
    """

    def __init__(self, path: Path):
        super().__init__(io.FileIO(path, "w"))
        self._hash = hashlib.sha256()

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes."""
        self._hash.update(data)
        return super().write(data)

    def finish(self) -> Sum:
        """Wait until the whole file is on the disk."""
        self.flush()
        os.fsync(self.fileno())
        return Sum(self.tell(), self._hash.hexdigest())


def write(path: Path, content: bytes) -> Sum:
    """Write a whole file, and wait until it is on the disk."""
    with SummedFile(path) as file:
        file.write(content)
        return file.finish()


def sum_of(path: Path) -> Sum:
    """The size and checksum of an existing file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Sum(path.stat().st_size, digest)


def write_manifest(folder: Path, sums: Mapping[str, Sum]) -> None:
    """Write the manifest of a folder's files; this must be the last file written."""
    lines = {name: s._asdict() for name, s in sorted(sums.items())}
    write(folder / MANIFEST, json.dumps({"files": lines}, indent=1).encode())


def sync(folder: Path) -> None:
    """Wait until the names of the files in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # A file system that cannot, such as a bucket's.
            raise
    finally:
        os.close(handle)


def read_manifest(folder: Path) -> dict[str, Sum] | None:
    """The files of a folder, all checked for presence and size; None if there is no manifest."""
    try:
        text = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    try:
        sums = {str(k): Sum(**v) for k, v in json.loads(text)["files"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(folder, MANIFEST, f"was changed ({type(error).__name__})") from error
    for name, known in sums.items():
        path = folder / name
        if not path.exists():
            raise damaged(folder, name, "is missing")
        size = path.stat().st_size
        if size != known.size:
            raise damaged(folder, name, f"has {size} bytes, and was written with {known.size}")
    return sums


def check(folder: Path, name: str, sums: Mapping[str, Sum]) -> None:
    """Raise unless a file is as it was written."""
    if name not in sums:
        raise damaged(folder, MANIFEST, f"was changed (it does not name {name})")
    if sum_of(folder / name) != sums[name]:
        raise damaged(folder, name, "was changed: its checksum is not that of what was written")


def read_extra(folder: Path) -> Any:
    """The `extra` given to `save_checkpoint`.

    Raises:
        FileNotFoundError: the folder has no such file.
    """
    sums = read_manifest(folder)
    if sums is None:
        if (folder / EXTRA).exists():
            raise damaged(folder, MANIFEST, "is missing")
        raise FileNotFoundError(folder / EXTRA)
    check(folder, EXTRA, sums)
    return json.loads((folder / EXTRA).read_bytes())


def damaged(folder: Path, name: str, what: str) -> DamagedCheckpointError:
    """The error for a damaged file, or for some file of the folder if `name` is empty."""
    return DamagedCheckpointError(
        format_error(
            f"the checkpoint at {folder} is damaged: {f'{name} {what}'.lstrip()}",
            "use an older checkpoint, or a copy of this one.",
        ),
        folder / name,
    )
