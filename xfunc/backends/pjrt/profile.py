"""JAX's profiler, which records the work of the device and the host."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator

from xfunc.backends.pjrt import client
from xfunc.errors import fail


def start(folder: str) -> None:
    """Begin to record.

    Raises:
        RuntimeError: something is being recorded already.
    """
    try:
        with _without_tensorflow():
            client.jax().profiler.start_trace(folder)
    except RuntimeError as error:
        if "already been started" not in str(error):
            raise
        fail(RuntimeError, "JAX is already recording a profile", "end that one first.")


def stop() -> None:
    """Write the recording."""
    from jax._src import profiler

    try:
        with _without_tensorflow():
            profiler.stop_trace()
    finally:  # JAX (0.7.1) would keep a session that it failed to write, and begin no other.
        profiler._profile_state.reset()


@contextlib.contextmanager
def _without_tensorflow() -> Iterator[None]:
    """Show XLA, in a block, empty modules where it looks for tensorflow's.

    It writes an error to stderr if there is none, and imports all of tensorflow if there is.
    """
    names = ("tensorflow", "tensorflow.python.profiler.trace")
    if names[0] in sys.modules:
        yield
        return
    sys.modules.update((name, types.ModuleType(name)) for name in names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
