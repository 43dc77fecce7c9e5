"""Recording profiles of the device and the host for xprof and TensorBoard."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from xfunc.backends.active import runtime
from xfunc.errors import fail, kind_of, short_repr

__all__ = ["annotate", "trace"]


@contextlib.contextmanager
def trace(log_dir: str | os.PathLike[str]) -> Iterator[None]:
    """Record all programs that run in the block, and write the profile below `log_dir`.

    The files, ``plugins/profile/<time>/<host>.xplane.pb`` and ``.trace.json.gz``, are read by
    ``xprof --logdir`` and by TensorBoard's profile plugin; the second one by Perfetto too. Programs
    appear under the name of their function, operations with the scopes of `xfunc.named_scope` and
    the user's lines. The end of the block waits for all programs that have been launched.

    Args:
        log_dir: the path of a folder, which is made if it does not exist.

    Returns:
        A context manager for a ``with`` block.

    Raises:
        RuntimeError: something is being recorded already.
        OSError: the folder cannot be made.

    Source: ``jax.profiler.trace``.
    """
    if not _one.acquire(blocking=False):
        fail(
            RuntimeError,
            "a profile is already being recorded",
            "record one at a time: end the other block first.",
        )
    try:
        with runtime().profile(_made(log_dir)):
            yield
    finally:
        _one.release()


def _made(log_dir: object) -> str:
    """The folder, which XLA would miss only when it has recorded everything."""
    if not isinstance(log_dir, (str, os.PathLike)):
        fail(
            TypeError,
            f"profiler.trace was given {short_repr(log_dir)} ({kind_of(log_dir)})",
            "pass the path of a folder.",
        )
    folder = os.fspath(log_dir)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        fail(
            type(error),
            f"profiler.trace cannot write into {short_repr(folder)}: {error.strerror}",
            "give it a folder that exists or can be made.",
        )
    return folder


_one = threading.Lock()  # XLA has one session at a time.


def annotate(
    name: str, *, step_num: int | None = None
) -> contextlib.AbstractContextManager[object]:
    """Show the host's work in a ``with`` block under a name in the profile.

    Args:
        name: the name of the block.
        step_num: of a training step, its number: xprof then shows times by step.

    Returns:
        A context manager.

    Semantics: ``jax.profiler.TraceAnnotation``, or with a step ``StepTraceAnnotation``.
    """
    return runtime().mark(name, step_num)
