"""Who holds a traced value that has outlived its trace.

NOTE [values that are only displayed]: a log record keeps its arguments until it is formatted, under
pytest until the test ends; a debugger, a profiler or a traceback keeps the frames that it saw, with
their variables. Nobody computes with these: they are defused like any leaked value, but they are
not a mistake in the traced function. Python tells who refers to an object; where all ways back end
at such a holder, it is no leak. A variable of a function that still runs is not among the
referrers, so an object that nothing seems to refer to has an owner.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import types
from collections.abc import Collection

import torch

_DISPLAYS = (logging.LogRecord, types.FrameType, types.TracebackType)
_DEBUGGERS = ("pydevd", "_pydevd_bundle", "_pydevd_frame_eval", "debugpy")
_CONTAINERS = (
    tuple, list, dict, set, frozenset, types.CellType, types.FunctionType, types.MethodType,
    functools.partial,
)  # fmt: skip
_MOST = 1000  # objects that are looked at


def are_owned(tensors: Collection[torch.Tensor], besides: Collection[object]) -> bool:
    """Whether anything but `besides`, and what only displays values, holds one of some tensors.

    ``y.mul_(y)`` makes y the result of an operation that saves y for its derivative. Such a cycle
    is entirely in C++, and has no owner in Python.
    """
    ours = {id(tensors), *map(id, besides)}
    excused = {*_snapshots(), *_of_debuggers()}
    level: list[object] = [*tensors]
    seen = set(map(id, level))
    while level:
        # One look at all objects for all of a level. Lists made here must not be among the holders.
        holders = [h for h in gc.get_referrers(*level) if h is not level and id(h) not in ours]
        above: list[object] = []
        for holder in holders:
            if _displays(holder) or id(holder) in seen or id(holder) in excused:
                continue
            if type(holder) not in _CONTAINERS or len(seen) > _MOST or _is_of_module(holder):
                return True
            seen.add(id(holder))
            above.append(holder)
        held = {id(x) for holder in holders for x in gc.get_referents(holder)}
        if any(id(x) not in held for x in level if not isinstance(x, torch.Tensor)):
            return True
        del holders
        level = above
    return False


def _snapshots() -> list[int]:
    """The copies of their variables, by id, that running functions have for a debugger.

    Their frames are not among the referrers, either.
    """
    if sys.gettrace() is None and sys.getprofile() is None:
        return []
    found: list[int] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_locals is not frame.f_globals:
            found.append(id(frame.f_locals))
        frame = frame.f_back
    return found


def _of_debuggers() -> list[int]:
    """Debuggers and their attributes, by id, to which the cache may refer, too."""
    bdb = sys.modules.get("bdb")
    if bdb is None:
        return []
    debuggers = [x for x in gc.get_objects() if issubclass(type(x), bdb.Bdb)]
    return [id(x) for debugger in debuggers for x in (debugger, vars(debugger))]


def _displays(holder: object) -> bool:
    kind = type(holder)
    return issubclass(kind, _DISPLAYS) or str(kind.__module__).partition(".")[0] in _DEBUGGERS


def _is_of_module(holder: object) -> bool:
    """Whether this holds the global variables of a module, to which all of its functions refer."""
    return type(holder) is dict and "__builtins__" in holder
