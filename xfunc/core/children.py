"""Processes that this one starts, and ends with all that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def child(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process for a block, at whose end it and what it has started are ended."""
    # A group of its own, to be ended as a whole.
    with subprocess.Popen(command, start_new_session=True, **options) as started:
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):  # if all of it has ended
                os.killpg(started.pid, signal.SIGKILL)


def run(
    command: Sequence[str | Path], given: bytes, env: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """A process run to its end: its exit status, and what it printed.

    Args:
        command: the program and its arguments.
        given: its input.
        env: its environment.
        seconds: how long it may take.

    Raises:
        subprocess.TimeoutExpired: it took longer; it has been ended.
    """
    pipe = subprocess.PIPE
    with child(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env) as started:
        out, err = started.communicate(given, timeout=seconds)
    return subprocess.CompletedProcess(command, started.returncode, out, err)
