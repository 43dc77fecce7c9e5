"""Rules of `xfunc.cache.fingerprint` for objects of Python's own classes and NumPy's arrays."""

from __future__ import annotations

import array
import collections
import contextvars
import functools
import threading
import types
import typing
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from xfunc.cache import snapshots
from xfunc.cache.snapshots import MISSING
from xfunc.core.locations import in_user_code

if TYPE_CHECKING:
    from xfunc.cache.fingerprint import Fingerprinter


BUILTIN_METHODS = (types.BuiltinFunctionType, types.MethodWrapperType)
_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
_CACHED = type(functools.lru_cache(lambda: None))
_UNION: type = type(int | str)
_ALIAS: type = vars(typing)["_GenericAlias"]  # of Optional[int]


class ById:
    """Equal to itself only; keeps its object alive, so that the identity stays unique."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is ById and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} at {id(self.value):#x}>"


def _function(walk: Fingerprinter, x: types.FunctionType) -> Hashable:
    walk.functions.append(x)
    cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)
    before = walk.refuses, walk.holder, walk.variable
    walk.refuses = walk.refuses and in_user_code(x.__code__)
    walk.holder, walk.variable = x.__qualname__, ""
    try:
        return _function_value(walk, x, cells)
    finally:
        walk.refuses, walk.holder, walk.variable = before


def _function_value(
    walk: Fingerprinter, x: types.FunctionType, cells: Iterable[tuple[str, types.CellType]]
) -> Hashable:
    return (
        x.__code__,
        ById(x.__globals__),
        tuple((name, _captured(walk, name, c)) for name, c in cells),
        walk.value(x.__defaults__),
        walk.value(x.__kwdefaults__),
        walk.state(x),
    )


def _captured(walk: Fingerprinter, name: str, cell: types.CellType) -> Hashable:
    walk.variable = f" in {name!r}"
    try:
        return walk.place(cell, None, [_content(cell)])
    finally:
        walk.variable = ""


def _content(cell: types.CellType) -> object:
    found = snapshots.content(cell)
    return Ellipsis if found is MISSING else found


def _method(walk: Fingerprinter, x: types.MethodType) -> Hashable:
    return ("method", walk.value(x.__func__), ("self", walk.value(x.__self__)))


def _builtin(walk: Fingerprinter, x: Any) -> Hashable:
    owner = x.__self__
    if owner is None or isinstance(owner, (types.ModuleType, type)):
        return ById(x)
    return ("method", x.__name__, ("self", walk.value(owner)))


def _partial(walk: Fingerprinter, x: functools.partial[object]) -> Hashable:
    keywords = tuple((k, walk.value(v)) for k, v in x.keywords.items())
    return ("partial", walk.value(x.func), walk.all(x.args), keywords)


def _sequence(walk: Fingerprinter, x: object) -> Hashable:
    return (type(x), walk.place(x, None, snapshots.stored(x)))


def _tuple(walk: Fingerprinter, x: tuple[object, ...]) -> Hashable:
    return (type(x), walk.all(snapshots.stored(x)))


def _dict(walk: Fingerprinter, x: dict[object, object]) -> Hashable:
    items = [part for item in zip(*snapshots.keys_and_values(x), strict=True) for part in item]
    factory = x.default_factory if isinstance(x, collections.defaultdict) else None
    return (type(x), walk.place(x, None, items), walk.value(factory))


def _array(walk: Fingerprinter, x: np.ndarray) -> Hashable:
    if x.dtype == object:
        return (type(x), x.shape, walk.place(x, None, x.ravel()))
    return (type(x), x.shape, x.strides, x.dtype, x.tobytes())


def _bytes(walk: object, x: object) -> Hashable:
    return (type(x), getattr(x, "typecode", getattr(x, "format", None)), snapshots.bytes_of(x))


def _range(walk: Fingerprinter, x: slice | range) -> Hashable:
    return (type(x), walk.all((x.start, x.stop, x.step)))


def _cached(walk: Fingerprinter, x: Any) -> Hashable:
    return ("cached", walk.value(x.__wrapped__), walk.state(x))


def _atom(walk: object, x: object) -> Hashable:
    base = next(b for b in (str, bytes, int, float, complex) if isinstance(x, b))
    shown_as: Any = base.__repr__  # Its own class may show it differently.
    return (base, shown_as(x))


RULES: dict[type, Callable[[Any, Any], Hashable]] = {
    types.FunctionType: _function,
    types.MethodType: _method,
    **dict.fromkeys(BUILTIN_METHODS, _builtin),
    functools.partial: _partial,
    list: _sequence,
    tuple: _tuple,
    dict: _dict,
    collections.deque: _sequence,
    set: _sequence,
    frozenset: _sequence,
    np.ndarray: _array,
    **dict.fromkeys((bytearray, array.array, memoryview), _bytes),
    **dict.fromkeys((range, slice), _range),
    types.MappingProxyType: lambda walk, x: ("proxy", walk.all((*x.keys(), *x.values()))),
    **dict.fromkeys(_VIEWS, lambda walk, x: (type(x).__name__, walk.all(x))),
    _CACHED: _cached,
    contextvars.ContextVar: lambda walk, x: (ById(x), walk.value(snapshots.context_value(x))),
    threading.local: lambda walk, x: (ById(x), walk.state(x)),
    _UNION: lambda walk, x: ("union", walk.all(x.__args__)),
    _ALIAS: lambda walk, x: ("alias", walk.value(x.__origin__), walk.all(x.__args__)),
    weakref.ref: lambda walk, x: ("reference", walk.value(x())),
    **dict.fromkeys(
        weakref.ProxyTypes, lambda walk, x: ("proxy", walk.value(snapshots.referent(x)))
    ),
    **dict.fromkeys((str, bytes, int, float, complex), _atom),
}
