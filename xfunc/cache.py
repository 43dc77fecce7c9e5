"""The cache of programs: by the value of a function, and by what it was called with.

A function's *value* is its code together with everything that it holds: closure cells, defaults,
arguments of a partial, the object of a bound method. Tensors among these do not count by value:
they become inputs of the program, keyed by shape and dtype only. So a lambda that closes over the
newest batch hits, and a changed number, dtype or shape misses.

NOTE [aliases]: that a tensor stands in two places of the key is itself part of the key. A program
traced while two closure cells held one tensor would otherwise be wrong when they hold two.

NOTE [volatile places]: a function that counts its own runs, in a list or an attribute that it
holds, would never hit. So the places that a function changed while it was being traced (a closure
cell, a list, dict or set, an attribute) no longer count by value.

Globals that a function names are not part of its value: as in JAX, they are read when it is traced.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import logging
import threading
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from xfunc.locations import function_name

MAX_ENTRIES = 256  # per function; the least recently used goes
MAX_FUNCTIONS = 1024
_MAX_NODES = 10_000  # of one function's value; what lies beyond counts by identity

_ATOMS = (type(None), bool, int, str, bytes, type(Ellipsis))
_OPAQUE = (type, types.ModuleType, logging.Logger, torch.dtype, torch.device, torch.Generator)


class _Same:
    """Equal to itself only; keeps its object alive, so that the identity stays unique."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} at {id(self.value):#x}>"


class Wrapper:
    """Base of callables whose value is their kind, their options and the function inside.

    Attributes:
        fun: the function inside.
        options: what else determines the behaviour; hashable.
    """

    fun: Callable[..., Any]
    options: Hashable


# See NOTE [volatile places]: (id of the owner, attribute or None) -> the owner, kept alive.
_volatile: dict[tuple[int, str | None], Any] = {}


class _Walk:
    """One visit of all that a function holds.

    Attributes:
        tensors: those found, each once.
        places: for each place that could be changed, its owner and its content as it is.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[int, str | None], tuple[Any, Hashable]] | None = None
        self.tensors: list[torch.Tensor] = []
        self._seen: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._alive: list[Any] = []

    def value(self, x: Any) -> Hashable:
        kind = type(x)
        if kind in _ATOMS:
            return (kind, x)
        if kind is float or kind is complex:
            return (kind, repr(x))  # nan equals itself, and 0.0 is not -0.0
        if isinstance(x, torch.Tensor):
            return self._tensor(x)
        if isinstance(x, (*_OPAQUE, types.BuiltinFunctionType, enum.Enum)):
            return _Same(x)
        before = self._seen.get(id(x))
        if before is not None:
            return ("again", before)
        if len(self._seen) > _MAX_NODES:
            return _Same(x)
        self._seen[id(x)] = len(self._seen)
        self._alive.append(x)
        return self._structure(kind, x)

    def _tensor(self, x: torch.Tensor) -> Hashable:
        slot = self._slots.setdefault(id(x), len(self.tensors))
        if slot == len(self.tensors):
            self.tensors.append(x)
        return ("tensor", slot, tuple(x.shape), x.dtype)

    def _structure(self, kind: type, x: Any) -> Hashable:
        if isinstance(x, types.FunctionType):
            cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)
            return (
                x.__code__,
                _Same(x.__globals__),
                tuple((name, self._place(c, None, [_content(c)])) for name, c in cells),
                self.value(x.__defaults__),
                self.value(x.__kwdefaults__),
                self._state(x),
            )
        if isinstance(x, Wrapper):
            return (kind, x.options, self.value(x.fun))
        if isinstance(x, types.MethodType):
            return ("method", self.value(x.__func__), ("self", self.value(x.__self__)))
        if isinstance(x, functools.partial):
            keywords = tuple((k, self.value(v)) for k, v in x.keywords.items())
            return ("partial", self.value(x.func), self._all(x.args), keywords)
        if isinstance(x, tuple):
            return (kind, self._all(x))
        if isinstance(x, (list, collections.deque)):
            return (kind, self._place(x, None, x))
        if isinstance(x, dict):
            items = [part for item in x.items() for part in item]
            return (kind, self._place(x, None, items), self._state(x))
        if isinstance(x, (set, frozenset)):
            return (kind, self._place(x, None, sorted(x, key=hash)))
        if isinstance(x, np.ndarray) and x.dtype != object:
            return (kind, x.shape, x.dtype.str, x.tobytes())
        if not dataclasses.is_dataclass(x) and kind.__hash__ not in (object.__hash__, None):
            try:
                hash(x)
            except TypeError:
                return _Same(x)
            return (kind, x)
        return (kind, self._state(x)) if _is_transparent(kind) else _Same(x)

    def _all(self, xs: Iterable[Any]) -> tuple[Hashable, ...]:
        return tuple([self.value(x) for x in xs])

    def _state(self, x: Any) -> Hashable:
        """The attributes of an object, by value."""
        slots = [n for c in type(x).__mro__ for n in _slots(c) if hasattr(x, n)]
        named = {**getattr(x, "__dict__", {}), **{n: getattr(x, n) for n in slots}}
        return tuple((name, self._place(x, name, [v])) for name, v in named.items())

    def _place(self, owner: Any, label: str | None, contents: Iterable[Any]) -> Hashable:
        """The value of what stands in a place that could be changed."""
        key = (id(owner), label)
        if key in _volatile:
            return _Same(owner)
        contents = list(contents)
        if self.places is not None:
            self.places[key] = (owner, tuple(map(_as_it_is, contents)))
        return self._all(contents)


def _as_it_is(x: Any) -> Hashable:
    """What tells whether a place still holds the same: identity, or the value of an atom."""
    return (type(x), repr(x)) if type(x) in (*_ATOMS, float, complex) else id(x)


def places_of(fun: Any) -> dict[tuple[int, str | None], tuple[Any, Hashable]]:
    """The places that a function holds, and what is in them."""
    walk = _Walk()
    walk.places = {}
    walk.value(fun)
    return walk.places


def note_changes(fun: Any, before: dict[tuple[int, str | None], tuple[Any, Hashable]]) -> bool:
    """Mark the places changed since `before` as volatile; whether there were any."""
    now = places_of(fun)
    for key, (owner, held) in before.items():
        if key in now and now[key][1] != held:
            _volatile[key] = owner
    return any(key in _volatile for key in before)


@functools.cache
def _is_transparent(cls: type) -> bool:
    """Whether all the state of a class's objects is in attributes: none is hidden in C.

    The same sum by which `object.__reduce_ex__` tells what it may pickle.
    """
    size = object.__basicsize__ + 8 * sum(len(_slots(c)) for c in cls.__mro__)
    size += 8 * (cls.__dictoffset__ > 0) + 8 * (getattr(cls, "__weakrefoffset__", 0) > 0)
    return cls.__basicsize__ == size and cls.__itemsize__ == 0


def _slots(cls: type) -> tuple[str, ...]:
    names = cls.__dict__.get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Not bound yet: a function that refers to itself while it is being made.
        return Ellipsis


def function_value(fun: Any) -> tuple[Hashable, list[torch.Tensor]]:
    """A function's value, and the tensors that it holds."""
    walk = _Walk()
    return walk.value(fun), walk.tensors


def is_constant(fun: Any) -> bool:
    """Whether a function holds nothing that can change, so that its value may be taken once."""
    if isinstance(fun, Wrapper):
        return is_constant(fun.fun)
    if not isinstance(fun, types.FunctionType):
        return isinstance(fun, (types.BuiltinFunctionType, type))
    held = (*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values())
    immutable = all(type(d) in (*_ATOMS, float, complex) for d in held)
    return not fun.__closure__ and immutable and not fun.__dict__


def skeleton(fun: Any) -> Hashable:
    """What stays the same of a function however often it is made anew."""
    if isinstance(fun, Wrapper):
        return (type(fun), fun.options, skeleton(fun.fun))
    if isinstance(fun, functools.partial):
        return ("partial", skeleton(fun.func))
    if isinstance(fun, types.MethodType):
        return ("method", skeleton(fun.__func__))
    if isinstance(fun, types.FunctionType):
        return (fun.__code__, _Same(fun.__globals__))
    return type(fun) if not isinstance(fun, (type, types.BuiltinFunctionType)) else _Same(fun)


class CacheInfo(NamedTuple):
    """Counters of one function's cache since it was last cleared."""

    hits: int
    misses: int
    traces: int
    compiles: int
    size: int


class Key(NamedTuple):
    """What a program is cached by, beside the skeleton of its function."""

    values: Hashable
    tree: Any
    avals: tuple[Any, ...]
    static: Hashable
    modes: Hashable


class FunctionCache:
    """The programs of one function."""

    def __init__(self, name: str, root: Any):
        self.name, self.root = name, root
        self.entries: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self.hits = self.misses = self.traces = self.compiles = 0
        self.last_miss = "not called yet"

    def find(self, key: Hashable) -> Any:
        """The entry of a key, or None; counts."""
        entry = self.entries.get(key)
        if entry is not None:
            self.hits += 1
            if len(self.entries) > 1:
                self.entries.move_to_end(key)
        return entry

    def missed(self, key: Key) -> None:
        """Count a miss, and note what differed from the nearest key before."""
        self.misses += 1
        self.last_miss = self._why(key)

    def add(self, key: Hashable, entry: Any) -> None:
        """Keep an entry; the least recently used one makes room."""
        self.entries[key] = entry
        while len(self.entries) > MAX_ENTRIES:
            self.entries.popitem(last=False)

    def _why(self, key: Key) -> str:
        known = [k for k in self.entries if isinstance(k, Key)]
        if not known:
            return "first call"

        def distance(other: Key) -> int:
            return sum(a != b for a, b in zip(key, other, strict=True))

        nearest = min(reversed(known), key=distance)
        lines = [
            f"{_LABELS[field]} changed: {_difference(old, new)}"
            for field, old, new in zip(Key._fields, nearest, key, strict=True)
            if old != new
        ]
        return "\n".join(lines)

    def info(self) -> CacheInfo:
        return CacheInfo(self.hits, self.misses, self.traces, self.compiles, len(self.entries))

    def clear(self) -> None:
        self.entries.clear()
        self.hits = self.misses = self.traces = self.compiles = 0
        self.last_miss = "not called yet"


_LABELS = {
    "values": "a value that the function holds",
    "tree": "the structure of the arguments",
    "avals": "a shape or dtype",
    "static": "a static argument",
    "modes": "a global mode",
}


def _difference(old: Any, new: Any, path: str = "") -> str:
    """The first place where two keys differ, and both values there."""
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        named = len(new) == 2 and isinstance(new[0], str) and old[0] == new[0]
        for a, b in zip(old, new, strict=True):
            if a != b:
                return _difference(a, b, f"{path}.{new[0]}" if named else path)
    place = f" in {path.lstrip('.')}" if path else ""
    return f"{_plain(old)} -> {_plain(new)}{place}"


def _plain(x: Any) -> str:
    if isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], type):
        return repr(x[1]) if not isinstance(x[1], str) or x[0] is str else x[1]
    return str(x)


_functions: collections.OrderedDict[Hashable, FunctionCache] = collections.OrderedDict()
_guard = threading.Lock()


def cache_of(fun: Any) -> FunctionCache:
    """The cache of a function, shared by all functions of the same skeleton."""
    key = skeleton(fun)
    with _guard:
        found = _functions.get(key)
        if found is None:
            found = _functions[key] = FunctionCache(
                function_name(root_of(fun)), _code(root_of(fun))
            )
            while len(_functions) > MAX_FUNCTIONS:
                _functions.popitem(last=False)
        else:
            _functions.move_to_end(key)
        return found


def root_of(fun: Any) -> Any:
    """The Python function inside transforms, partials and methods."""
    while True:
        if isinstance(fun, Wrapper):
            fun = fun.fun
        elif isinstance(fun, functools.partial):
            fun = fun.func
        elif isinstance(fun, types.MethodType):
            fun = fun.__func__
        else:
            return fun


def _code(fun: Any) -> Any:
    return getattr(fun, "__code__", fun)


def clear_caches() -> None:
    """Forget all programs, compiled or not, and reset all counters."""
    with _guard:
        for cache in _functions.values():
            cache.clear()
        _volatile.clear()


def trace_count(fun: Any) -> int:
    """How often the Python code of `fun` was run to trace it.

    `fun` may be a function or any transform of it: the count is that of the transformed function
    called; for a plain function, of all transforms of it together.
    """
    if isinstance(fun, Wrapper):
        return cache_of(fun).traces
    code = _code(root_of(fun))
    with _guard:
        return sum(c.traces for c in _functions.values() if c.root == code)
