"""Processes that this one starts, and ends with all that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def child(
    command: Sequence[str | Path], env: dict[str, str], output: IO[Any] | int
) -> Generator[subprocess.Popen[bytes]]:
    """Run a process during a block; afterwards it and its descendants are ended.

    Args:
        command: the program and its arguments. Its input is a pipe.
        env: its environment.
        output: where it prints, errors too; `subprocess.PIPE`: to a pipe for either.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=env,
        start_new_session=True,  # a group, to be ended as a whole
    ) as started:
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):  # if all of it has ended
                os.killpg(started.pid, signal.SIGKILL)


def run(
    command: Sequence[str | Path], given: bytes, env: dict[str, str], seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a process to its end; returns its exit status and its output.

    Args:
        command: the program and its arguments.
        given: its input.
        env: its environment.
        seconds: how long it may take.

    Raises:
        subprocess.TimeoutExpired: it took longer; it has been ended.
    """
    with child(command, env, subprocess.PIPE) as started:
        out, err = started.communicate(given, timeout=seconds)
    return subprocess.CompletedProcess(command, started.returncode, out, err)
