"""Recording profiles of the device and the host for xprof and TensorBoard."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from xfunc.backends.active import runtime
from xfunc.errors import fail

__all__ = ["annotate", "trace"]


@contextlib.contextmanager
def trace(log_dir: str | os.PathLike[str]) -> Iterator[None]:
    """Record everything that runs in the block, and write it below `log_dir`.

    The files, ``plugins/profile/<time>/<host>.xplane.pb`` and ``.trace.json.gz``, are read by
    ``xprof --logdir`` and by TensorBoard's profile plugin; the second one by Perfetto too. Programs
    appear under the name of their function, operations with the scopes of `xfunc.named_scope` and
    the user's lines. The end of the block waits for all programs that have been launched.

    Raises:
        RuntimeError: something is being recorded already.

    Source: ``jax.profiler.trace``.
    """
    if not _one.acquire(blocking=False):
        fail(
            RuntimeError,
            "a profile is already being recorded",
            "record one at a time: end the other block first.",
        )
    try:
        with runtime().profile(os.fspath(log_dir)):
            yield
    finally:
        _one.release()


_one = threading.Lock()  # XLA has one session at a time.


def annotate(name: str) -> contextlib.AbstractContextManager[object]:
    """Show the host's work in a ``with`` block under a name in the profile.

    Source: ``jax.profiler.TraceAnnotation``.
    """
    return runtime().mark(name)
