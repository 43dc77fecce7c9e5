"""Finds the holder of a traced value that has outlived its trace.

NOTE [values that are only displayed]: a log record keeps its arguments until it is formatted, under
pytest until the test ends; a debugger, a profiler or a traceback keeps the frames that it saw, with
their variables. No program computes with these: they are defused like any leaked value, but they
are not a mistake in the traced function. `gc.get_referrers` gives the chains of referrers of an
object; if all of them end at such a holder, it is no leak. Chains lead through containers; and
while a debugger or profiler runs, which may keep frames of the library as well, through any object.
A variable of a running function is not among the referrers, so an object without referrers has an
owner.
"""

from __future__ import annotations

import collections
import functools
import gc
import sys
import types
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch

from xfunc.core.displays import debuggers, is_debugger, is_display

_CONTAINERS = (
    tuple, list, dict, set, frozenset, types.CellType, types.FunctionType, types.MethodType,
    functools.partial, collections.OrderedDict, collections.defaultdict, collections.deque,
    types.MappingProxyType,
)  # fmt: skip
_PARTS = (tuple, list, dict, collections.defaultdict, set)
_MOST = 1000  # objects that are looked at


class Owner(NamedTuple):
    """Who holds a tensor.

    Attributes:
        tensor: the one that is held.
        description: "the list `results`".
    """

    tensor: torch.Tensor
    description: str


def owner_of(tensors: Collection[torch.Tensor], besides: Collection[object]) -> Owner | None:
    """A holder of one of some tensors, except `besides` and objects that only display values.

    ``y.mul_(y)`` makes y the result of an operation that saves y for its derivative. Such a cycle
    is entirely in C++, and has no owner in Python.
    """
    ours = {id(tensors), *map(id, besides)}
    is_watched = sys.gettrace() is not None or sys.getprofile() is not None
    excused = {*_snapshots(), *_of_debuggers()}
    level: list[object] = [*tensors]
    held_by: dict[int, object] = {}
    seen = set(map(id, level))
    watching: Owner | None = None  # ours: it only observes values held by the user's code
    while level:
        # One scan of all objects per level. Objects made here must not be among the holders: from
        # Python 3.13 on, the tuple of arguments would be.
        args = tuple(level)
        made = {id(args), id(level)} | ours
        holders = [h for h in gc.get_referrers(*args) if id(h) not in made]
        above: list[object] = []
        held: set[int] = set()
        for holder in holders:
            parts = set(map(id, gc.get_referents(holder)))
            held |= parts
            if is_display(type(holder)) or id(holder) in seen or id(holder) in excused:
                continue
            held_by[id(holder)] = next(x for x in level if id(x) in parts)
            passes = is_watched or type(holder) in _CONTAINERS
            if not passes or len(seen) > _MOST or _is_of_module(holder):
                owner = _described(holder, held_by)
                if not type(holder).__module__.startswith("xfunc."):
                    return owner
                watching = watching or owner
                continue
            seen.add(id(holder))
            above.append(holder)
        for x in level:
            if id(x) not in held and not isinstance(x, torch.Tensor):
                return _described(x, held_by)
        del holders
        level = above
    return watching


def _described(holder: object, held_by: Mapping[int, object]) -> Owner:
    """The owner at the end of a chain of referrers: `held_by` maps the id of a holder to its
    object.
    """
    path = [holder]
    while (below := held_by.get(id(path[-1]))) is not None:
        path.append(below)
    *_, direct, tensor = path
    assert isinstance(tensor, torch.Tensor)
    inner, kind = path[1], type(holder).__name__
    if type(holder) is dict and "__builtins__" in holder:
        kind = "global variable" if inner is tensor else type(inner).__name__
        return Owner(tensor, f"the {kind} `{_name(holder, inner)}`")
    variables = getattr(holder, "__dict__", {})
    if type(inner) is dict and (inner is variables or isinstance(holder, type)):
        inner = path[2]
    name = _name(variables, inner)
    if isinstance(holder, type):
        return Owner(tensor, f"the attribute `{name}` of the class {holder.__name__}")
    if name is None and type(holder) in _CONTAINERS:  # which a running function knows
        kind = type(direct).__name__
    a_kind = f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"
    return Owner(tensor, a_kind if name is None else f"the attribute `{name}` of {a_kind}")


def _name(variables: Mapping[Any, object], value: object) -> str | None:
    return next((k for k, v in variables.items() if v is value), None)


def _snapshots() -> list[int]:
    """The copies of their variables, by id, that running functions have for a debugger.

    Their frames are not among the referrers, either.
    """
    if sys.gettrace() is None and sys.getprofile() is None:
        return []
    result: list[int] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_locals is not frame.f_globals:
            result.append(id(frame.f_locals))
        frame = frame.f_back
    return result


def _of_debuggers() -> list[int]:
    """The ids of debuggers' parts, to which the cache may refer, too."""
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
