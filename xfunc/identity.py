"""The value of a function: what tells two functions apart.

A function's *value* is its code together with everything that it holds: closure cells, defaults,
arguments of a partial, the object of a bound method. Tensors among these do not count by value:
they become inputs of the program, keyed by shape and dtype only. So a lambda that closes over the
newest batch hits, and a changed number, dtype or shape misses.

NOTE [aliases]: that a tensor stands in two places of the key is itself part of the key. A program
traced while two closure cells held one tensor would otherwise be wrong when they hold two.

NOTE [volatile places]: a function that counts its own runs, in a list or an attribute that it
holds, would never hit. So the places that a function changed while it was being traced (a closure
cell, a list, dict or set, an attribute) no longer count by value.

The same holds for what a callback (`xfunc.debug`) holds: a list that collects what it is called
with is that list, and no list that happens to be equal.

Globals that a function names are not part of its value; see `xfunc.globals`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import logging
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
import torch

from xfunc.locations import function_name

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


class Part(Wrapper):
    """A function as a part of something else: the body of a loop, a branch.

    Its programs are kept apart from those of the function itself.
    """

    def __init__(self, fun: Callable[..., Any], role: Hashable):
        self.fun, self.options = fun, role
        self.__wrapped__ = fun  # for its signature
        self.__qualname__ = function_name(fun)


class Bundle(Wrapper):
    """Several functions that count as one: their values together. The first gives the name."""

    def __init__(self, funs: Iterable[Callable[..., Any]]):
        self.funs = tuple(funs)
        self.fun, self.options = self.funs[0], len(self.funs)
        self.__qualname__ = function_name(self.fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("several functions at once cannot be called")


# See NOTE [volatile places]: (id of the owner, attribute or None) -> the owner, kept alive.
_volatile: dict[tuple[int, str | None], Any] = {}


class _Walk:
    """One visit of all that a function holds.

    Attributes:
        tensors: those found, each once.
        functions: those found.
        places: for each place that could be changed, its owner and its content as it is.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[int, str | None], tuple[Any, Hashable]] | None = None
        self.tensors: list[torch.Tensor] = []
        self.functions: list[types.FunctionType] = []
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
            self.functions.append(x)
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
            inside = self._all(x.funs) if isinstance(x, Bundle) else self.value(x.fun)
            return (kind, x.options, inside)
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


class StateWalk(_Walk):
    """A visit of an object's attributes, where tensors and modules count by identity.

    Attributes:
        containers: what stands in each thing met that can be changed, as it is at any time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.containers: list[Iterable[Any]] = []

    def value(self, x: Any) -> Hashable:
        if isinstance(x, (torch.Tensor, torch.nn.Module)):
            return _Same(x)
        return super().value(x)

    def _structure(self, kind: type, x: Any) -> Hashable:
        if isinstance(x, (list, collections.deque, set)):
            self.containers.append(x)
        elif isinstance(x, dict):
            self.containers.append(x.values())
        elif hasattr(x, "__dict__") and not callable(x):
            self.containers.append(vars(x).values())
        return super()._structure(kind, x)


def places_of(fun: Any) -> dict[tuple[int, str | None], tuple[Any, Hashable]]:
    """The places that a function holds, and what is in them."""
    walk = _Walk()
    walk.places = {}
    walk.value(fun)
    return walk.places


def functions_in(fun: Any) -> list[types.FunctionType]:
    """The Python functions that a function consists of and holds."""
    walk = _Walk()
    walk.value(fun)
    return walk.functions


def note_changes(fun: Any, before: dict[tuple[int, str | None], tuple[Any, Hashable]]) -> bool:
    """Mark the places changed since `before` as volatile; whether there were any."""
    now = places_of(fun)
    for key, (owner, held) in before.items():
        if key in now and now[key][1] != held:
            _volatile[key] = owner
    return any(key in _volatile for key in before)


def let_change(fun: Any) -> bool:
    """Mark all places that a function holds as volatile; whether there are any."""
    places = places_of(fun)
    _volatile.update({key: owner for key, (owner, _) in places.items()})
    return bool(places)


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


def values_beside(
    given: Iterable[tuple[Hashable, Any]], held: list[torch.Tensor]
) -> tuple[tuple[tuple[Hashable, Hashable], ...], list[torch.Tensor]]:
    """The values of labelled things that a program depends on beside its function.

    And the tensors held by these and, first, by the function: see NOTE [aliases].
    """
    walk = _Walk()
    for t in held:
        walk.value(t)
    return tuple([(label, walk.value(x)) for label, x in given]), walk.tensors


def is_constant(fun: Any) -> bool:
    """Whether a function holds nothing that can change, so that its value may be taken once."""
    if isinstance(fun, Bundle):
        return all(map(is_constant, fun.funs))
    if isinstance(fun, Wrapper):
        return is_constant(fun.fun)
    if not isinstance(fun, types.FunctionType):
        return isinstance(fun, (types.BuiltinFunctionType, type))
    held = (*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values())
    immutable = all(type(d) in (*_ATOMS, float, complex) for d in held)
    return not fun.__closure__ and immutable and not fun.__dict__


def skeleton(fun: Any) -> Hashable:
    """What stays the same of a function however often it is made anew."""
    if isinstance(fun, Bundle):
        return (Bundle, tuple(map(skeleton, fun.funs)))
    if isinstance(fun, Wrapper):
        return (type(fun), fun.options, skeleton(fun.fun))
    if isinstance(fun, functools.partial):
        return ("partial", skeleton(fun.func))
    if isinstance(fun, types.MethodType):
        return ("method", skeleton(fun.__func__))
    if isinstance(fun, types.FunctionType):
        return (fun.__code__, _Same(fun.__globals__))
    return type(fun) if not isinstance(fun, (type, types.BuiltinFunctionType)) else _Same(fun)


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


def forget_changes() -> None:
    """Let places that have changed count by value again."""
    _volatile.clear()


def frozen(fun: Any) -> Any:
    """A copy of a function that does not see what it holds being changed later.

    A program runs its function again for each derived program, perhaps when the enclosing function
    has long given other values to the variables that it closes over, or to the entries of a dict.
    """
    return _frozen(fun, {})


def _frozen(x: Any, copies: dict[int, Any]) -> Any:
    if id(x) in copies:
        return copies[id(x)]
    if type(x) is list:
        copies[id(x)] = held = []
        held += [_frozen(v, copies) for v in x]
        return held
    if type(x) is dict:
        copies[id(x)] = items = {}
        items.update({k: _frozen(v, copies) for k, v in x.items()})
        return items
    if type(x) is tuple:
        return tuple([_frozen(v, copies) for v in x])
    if isinstance(x, functools.partial):
        inside = _frozen(x.func, copies), *_frozen(x.args, copies)
        return functools.partial(*inside, **_frozen(x.keywords, copies))
    if not isinstance(x, types.FunctionType) or not x.__closure__:
        return x
    cells = [copies.setdefault(id(c), types.CellType()) for c in x.__closure__]
    copy = types.FunctionType(
        x.__code__, x.__globals__, x.__name__, x.__defaults__, closure=tuple(cells)
    )
    copy.__kwdefaults__, copy.__qualname__ = x.__kwdefaults__, x.__qualname__
    copy.__dict__.update(x.__dict__)
    copies[id(x)] = copy
    for cell, new in zip(x.__closure__, cells, strict=True):
        with contextlib.suppress(ValueError):  # Not bound yet, or copied before.
            content = cell.cell_contents
            if id(new) not in copies:
                copies[id(new)] = new
                new.cell_contents = _frozen(content, copies)
    return copy
