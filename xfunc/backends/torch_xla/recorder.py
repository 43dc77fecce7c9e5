"""XLA's profiler, which records the work of the device and the host."""

from __future__ import annotations

import contextlib
from typing import Protocol

from xfunc.backends.torch_xla import runtime


class Session(Protocol):
    """XLA's profiler session."""

    def stop(self) -> bytes:
        """End the session; returns the recording."""
        ...

    def export(self, recorded: bytes, folder: str, /) -> None:
        """Write a recording."""
        ...


def session() -> Session:
    """Start recording; ``stop()`` of the session ends it and returns an ``XSpace``.

    Raises:
        RuntimeError: something is being recorded already.
    """
    return runtime.xla().profiler.TslProfilerSessionWrapper()


def mark(name: str, step_num: int | None) -> contextlib.AbstractContextManager[object]:
    """Show the host's work in a ``with`` block under a name, as a step if it has a number."""
    step = {} if step_num is None else {"step_num": step_num, "_r": 1}  # a root event, of xprof
    return runtime.xla().profiler.TraceMe(name, **step)
