"""Files and folders that get their names when they are complete."""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors import SafetensorError

_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
_SAMPLES, _BLOCK = 256, 1 << 16  # blocks of a large file, and their size


class NotWrittenError(OSError):
    """The disk did not take a file: it is full, or fails."""


@contextlib.contextmanager
def written(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Where to write what becomes the file or new folder `path` at the end of the ``with`` block.

    If the block fails, what it wrote is removed, and an old file `path` is as it was; if that is
    because the disk is full, or fails, the error is a `NotWrittenError`.
    """
    partial = partial or path.with_name(f"{path.name}.partial")
    _remove(partial)  # A killed process may have left it.
    try:
        yield partial
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        _remove(partial)
        # Neither names the file; and the second has no number and is no OSError.
        if isinstance(error, SafetensorError) or error.errno in _OF_THE_DISK:
            raise NotWrittenError(
                f"{path} could not be written ({error}): free some space or fix the file system, "
                "and run the command again"
            ) from error
        raise
    except BaseException:
        _remove(partial)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file, or leave the old one."""
    with written(path) as partial:
        partial.write_text(text, encoding="utf-8")


def sums(paths: Iterable[Path]) -> list[str]:
    """The sha256 of each file; empty for one that is not there."""
    return _of_each(sha256, paths)


def samples(paths: Iterable[Path]) -> list[str]:
    """Like `sums`, but of a file of more than 16 MiB only its size and 256 blocks of 64 KiB.

    They are spread evenly. Other weights differ in all of them, and need not be read whole.
    """
    return _of_each(_sampled, paths)


def _of_each(digest: Callable[[Path], str], paths: Iterable[Path]) -> list[str]:
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda path: digest(path) if path.is_file() else "", paths))


def sha256(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sampled(path: Path) -> str:
    size = path.stat().st_size
    if size <= _SAMPLES * _BLOCK:
        return sha256(path)
    found = hashlib.sha256(b"%d" % size)
    with path.open("rb") as file:
        for k in range(_SAMPLES):
            file.seek((size - _BLOCK) * k // (_SAMPLES - 1))
            found.update(file.read(_BLOCK))
    return found.hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
