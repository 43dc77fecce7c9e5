"""The functions that a thread is tracing, to find one that calls itself for ever."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator

from xfunc.cache.key import Key
from xfunc.cache.programs import FunctionCache
from xfunc.errors import fail
from xfunc.trace.lowering import count_compiles


class _Thread(threading.local):
    keys: tuple[tuple[FunctionCache, Key], ...] = ()


_thread = _Thread()


@contextlib.contextmanager
def being_traced(cache: FunctionCache, key: Key) -> Generator[None]:
    """While a function is traced for a key; compilations meanwhile are not counted for others."""
    keys = _thread.keys
    _thread.keys = (*keys, (cache, key))
    before = count_compiles(None)
    try:
        yield
    finally:
        count_compiles(before)
        _thread.keys = keys


def check(name: str, cache: FunctionCache, key: Key) -> None:
    """Fail if a function is being traced for the same key.

    Raises:
        RecursionError: it calls itself.
    """
    if (cache, key) in _thread.keys:
        fail(
            RecursionError,
            f"{name} calls itself, with arguments of the same shapes, while it is "
            "being traced: the trace would never end",
            "use xf.scan for a loop of fixed length, or make the depth a static argument.",
        )
