"""Who holds a traced value that has outlived its trace.

NOTE [values that are only displayed]: a log record keeps its arguments until it is formatted, under
pytest until the test ends; a debugger, a profiler or a traceback keeps the frames that it saw, with
their variables. Nobody computes with these: they are defused like any leaked value, but they are
not a mistake in the traced function. Python tells who refers to an object; where all ways back end
at such a holder, it is no leak. Ways back lead through containers, and while a debugger or profiler
watches, which may keep frames of the library as well, through any object. A variable of a function
that still runs is not among the referrers, so an object that nothing seems to refer to has an
owner.
"""

from __future__ import annotations

import collections
import functools
import gc
import sys
import types
from collections.abc import Collection

import torch

from xfunc.core.displays import debuggers, is_debugger, is_display

_CONTAINERS = (
    tuple, list, dict, set, frozenset, types.CellType, types.FunctionType, types.MethodType,
    functools.partial,
)  # fmt: skip
_PARTS = (tuple, list, dict, collections.defaultdict, set)
_MOST = 1000  # objects that are looked at


def are_owned(tensors: Collection[torch.Tensor], besides: Collection[object]) -> bool:
    """Whether anything but `besides`, and what only displays values, holds one of some tensors.

    ``y.mul_(y)`` makes y the result of an operation that saves y for its derivative. Such a cycle
    is entirely in C++, and has no owner in Python.
    """
    ours = {id(tensors), *map(id, besides)}
    is_watched = sys.gettrace() is not None or sys.getprofile() is not None
    excused = {*_snapshots(), *_of_debuggers()}
    level: list[object] = [*tensors]
    seen = set(map(id, level))
    while level:
        # One look at all objects for all of a level. What is made here must not be among the
        # holders: from Python 3.13 on, the tuple of arguments would be.
        args = tuple(level)
        made = {id(args), id(level)} | ours
        holders = [h for h in gc.get_referrers(*args) if id(h) not in made]
        above: list[object] = []
        for holder in holders:
            if is_display(type(holder)) or id(holder) in seen or id(holder) in excused:
                continue
            passes = is_watched or type(holder) in _CONTAINERS
            if not passes or len(seen) > _MOST or _is_of_module(holder):
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
    """What debuggers consist of, by id: the cache may refer to it, too."""
    level: list[object] = [x for x in gc.get_referrers(*debuggers()) if is_debugger(type(x))]
    found: dict[int, object] = {}
    while level and len(found) < _MOST:
        found.update((id(x), x) for x in level)
        below = [y for x in level for y in gc.get_referents(x)]
        level = [y for y in below if type(y) in _PARTS and id(y) not in found]
        level = [y for y in level if not _is_of_module(y)]
    return list(found)


def _is_of_module(holder: object) -> bool:
    """Whether this is a class, or the global variables of a module, which all functions reach."""
    return isinstance(holder, type) or (type(holder) is dict and "__builtins__" in holder)
