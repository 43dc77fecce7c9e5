"""XLA's recorder of what the device and the host do."""

from __future__ import annotations

import contextlib
from typing import Protocol

from xfunc.backends.torch_xla import runtime


class Session(Protocol):
    """XLA's profiler session."""

    def stop(self) -> bytes:
        """End it; what was recorded."""
        ...

    def export(self, recorded: bytes, folder: str, /) -> None:
        """Write what was recorded."""
        ...


def session() -> Session:
    """Begin to record; ``stop()`` of it ends that and returns an ``XSpace``.

    Raises:
        RuntimeError: something is being recorded already.
    """
    return runtime.xla().profiler.TslProfilerSessionWrapper()


def mark(name: str) -> contextlib.AbstractContextManager[object]:
    """Show what the host does in a ``with`` block under a name."""
    return runtime.xla().profiler.TraceMe(name)
