"""Objects that only display values: debuggers, log records and their handlers, frames, tracebacks.

No program computes with the values that they hold. So a traced function does not depend on them,
and a traced value that only they hold is no leak.
"""

from __future__ import annotations

import bdb
import functools
import logging
import types

_KINDS = (logging.LogRecord, logging.Handler, types.FrameType, types.TracebackType, bdb.Bdb)
_DEBUGGERS = ("pydevd", "_pydevd_bundle", "_pydevd_frame_eval", "debugpy")


@functools.lru_cache(4096)
def is_display(kind: type) -> bool:
    """Whether the instances of a class only display values."""
    return issubclass(kind, _KINDS) or str(kind.__module__).partition(".")[0] in _DEBUGGERS


@functools.lru_cache(4096)
def is_debugger(kind: type) -> bool:
    """Whether a class is a debugger."""
    return issubclass(kind, bdb.Bdb)


def debuggers() -> list[type]:
    """The classes of debuggers, to which their instances refer."""
    result: list[type] = [bdb.Bdb]
    for kind in result:
        result += type.__subclasses__(kind)
    return result
