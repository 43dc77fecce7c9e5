"""A run's folder has one owner at a time: the process that trains in it."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from ..files import write_text
from ..options import SettingError
from ..parallel import hosts

_LOCK, _OWNER = "run.lock", "owner.json"


class FolderInUseError(SettingError):
    """Another process writes to the folder; the message says which."""


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own a folder within the ``with`` block, creating it if needed.

    The operating system releases the lock when its process ends, in whatever way. The first of a
    run's several processes holds it for all of them.
    """
    lock, taken = FileLock(folder / _LOCK, timeout=0), False
    if hosts.is_first():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(Timeout):
            lock.acquire()
            taken = True
    if hosts.agree(hosts.is_first() and not taken):
        raise FolderInUseError(
            f"{folder} is in use by {_owner(folder)}: wait until it has finished, stop it, or "
            "use another folder"
        )
    with contextlib.ExitStack() as stack:
        if taken:
            stack.callback(lock.release)
            stack.callback((folder / _OWNER).unlink, missing_ok=True)
            since = datetime.now(UTC).isoformat(" ", "seconds")
            owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
            write_text(folder / _OWNER, json.dumps(owner))
        yield


def _owner(folder: Path) -> str:
    try:
        owner = json.loads((folder / _OWNER).read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError):  # The owner has only just started.
        return "another process"
