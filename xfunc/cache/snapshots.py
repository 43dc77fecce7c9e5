"""The contents of objects, as sequences that can be compared with their earlier contents."""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import functools
import types
import weakref
from collections.abc import Callable, Iterator, KeysView, Sequence, ValuesView
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

T = TypeVar("T")

MISSING = object()
_IMMUTABLE = 1 << 8  # CPython's flag of classes whose attributes cannot be set


class View(Protocol):
    """The contents of an object."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[object]: ...


class Look:
    """The contents that a function finds in an object."""

    def __init__(self, look: Callable[[T], Sequence[object]], thing: T):
        self._look, self._thing = look, thing

    def __len__(self) -> int:
        return len(self._look(self._thing))

    def __iter__(self) -> Iterator[object]:
        return iter(self._look(self._thing))


class _Stored:
    """What an object of a class derived from a container of Python's stores."""

    def __init__(self, base: Any, thing: object):
        self._base, self._thing = base, thing

    def __len__(self) -> int:
        return self._base.__len__(self._thing)

    def __iter__(self) -> Iterator[object]:
        return self._base.__iter__(self._thing)


_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
_DICTS: tuple[Any, ...] = (collections.OrderedDict, dict)


def base_of(x: object) -> Any:
    """The container of Python's from which the class of an object is derived, or that itself."""
    return next(b for b in (*_SEQUENCES, *_DICTS) if isinstance(x, b))


def stored(x: Any) -> View:
    """The contents of a list, tuple, set or deque, whatever methods its own class gives it."""
    kind, base = type(x), base_of(x)
    plain = kind.__iter__ is base.__iter__ and kind.__len__ is base.__len__
    return x if plain else _Stored(base, x)


def keys_and_values(x: Any) -> tuple[KeysView[object], ValuesView[object]]:
    """The contents of a dict, whatever methods its own class gives it."""
    base = base_of(x)
    return base.keys(x), base.values(x)


def is_namespace(x: object) -> bool:
    """Whether this is a dict, with a dict's own methods, whose keys are all strings."""
    if not isinstance(x, dict):
        return False
    kind = type(x)
    plain = any(kind.__iter__ is c.__iter__ and kind.values is c.values for c in _DICTS)
    return plain and all(type(k) is str for k in x)


class _Equal:
    """A view of an object's content: the same object as long as it is equal."""

    def __init__(self, look: Callable[[T], object], thing: T):
        self._look, self._thing, self._last = look, thing, look(thing)

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[object]:
        now = self._look(self._thing)
        if now != self._last:
            self._last = now
        yield self._last


def can_change(cls: type) -> bool:
    """Whether the attributes of a class may be set: those of most that are written in C may not."""
    return not cls.__flags__ & _IMMUTABLE


def bytes_of(x: Any) -> bytes:
    """The content of an array of numbers."""
    return x.tobytes() if isinstance(x, (np.ndarray, array.array, memoryview)) else bytes(x)


def content(cell: types.CellType) -> object:
    """The content of a closure cell; `MISSING` if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:  # Not bound yet: a function that refers to itself while it is being made.
        return MISSING


def slots_of(cls: type) -> tuple[str, ...]:
    """The names of the slots that a class itself defines."""
    names = cls.__dict__.get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    names = (n for n in names if n not in ("__dict__", "__weakref__"))
    return tuple(_mangled(n, cls) for n in names)


def _mangled(name: str, cls: type) -> str:
    private = name.startswith("__") and not name.endswith("__")
    return f"_{cls.__name__.lstrip('_')}{name}" if private else name


@functools.lru_cache(4096)
def all_slots(cls: type) -> tuple[str, ...]:
    """The names of all slots of a class, including those of its bases."""
    return tuple(n for c in cls.__mro__ for n in slots_of(c))


def context_value(var: contextvars.ContextVar[object]) -> object:
    """The value of a context variable in this context; `MISSING` if it has none."""
    try:
        return var.get()  # It may have a default.
    except LookupError:
        return MISSING


def referent(proxy: Any) -> object:
    """The object behind a weak proxy; `MISSING` if it is gone."""
    with contextlib.suppress(ReferenceError):
        return proxy.__reduce_ex__.__self__
    return MISSING


def _default_of(d: Any) -> tuple[object]:
    return (d.default_factory,)


def views(x: Any) -> list[View]:
    """Sized iterables over the contents of an object, always up to date."""
    if isinstance(x, (types.FunctionType, torch.Tensor)):
        return []
    if isinstance(x, functools.partial):
        return [Look(lambda p: (p.func, *p.args, *p.keywords, *p.keywords.values()), x)]
    if isinstance(x, _SEQUENCES):
        return [stored(x)]
    if isinstance(x, dict):
        own: list[View] = [Look(_default_of, x)] if isinstance(x, collections.defaultdict) else []
        return own if is_namespace(x) else [*own, *keys_and_values(x)]
    if isinstance(x, types.MappingProxyType):
        return [x, x.values()]
    if isinstance(x, (type({}.keys()), type({}.values()), type({}.items()))):
        return [x.mapping, x.mapping.values()]
    if isinstance(x, np.ndarray):  # All of these can be changed in place.
        form = _Equal(lambda a: (a.shape, a.strides, a.dtype), x)
        if x.dtype == object:
            return [form, Look(lambda a: tuple(a.ravel()), x)]
        return [form, _Equal(bytes_of, x)]
    if isinstance(x, (bytearray, array.array, memoryview)):
        return [_Equal(bytes_of, x)]
    if isinstance(x, contextvars.ContextVar):
        return [Look(lambda v: (context_value(v),), x)]
    if type(x) is weakref.ref:
        return [Look(lambda r: (r(),), x)]
    if type(x) in weakref.ProxyTypes:
        return [Look(lambda p: (referent(p),), x)]
    names = all_slots(type(x))
    if not names:
        return []
    return [Look(lambda o: tuple(getattr(o, n, MISSING) for n in names), x)]
