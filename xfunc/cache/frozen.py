"""Snapshots of functions: copies that do not see later changes to captured values.

A program runs its function again for each derived program. By then, the enclosing function may have
assigned other values to the variables that it closes over, or to the entries of a dict; or an equal
function has found the program, and the values that the first one holds have changed.
"""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import functools
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

from xfunc.backends.lock import lock
from xfunc.cache import snapshots
from xfunc.cache.fingerprint import Fingerprinter, consists_of_attributes
from xfunc.core.locations import function_name
from xfunc.core.wrappers import Bundle, Part, Wrapper
from xfunc.errors import format_error

T = TypeVar("T")


def snapshot_closure(fun: T) -> T:
    """A copy of a function, of its variables and of the containers in them.

    It shares the objects in them, which code may compare by identity: see `AsItWas`.
    """
    return _Copies().of(fun)


def as_it_was(fun: Callable[..., T]) -> Callable[..., T]:
    """A function that runs with the objects that `fun` holds in their present state.

    It runs with the objects themselves while they are unchanged, afterwards with copies of them.

    Args:
        fun: a frozen function.
    """
    copies = _Copies(objects=True)
    try:
        copied = copies.of(fun)
    except Exception as error:  # Objects may do anything when they are put into a set.
        copied = functools.partial(_refuse, function_name(fun), error)
    return AsItWas(fun, copied, copies) if copies.originals else fun


def _refuse(name: str, error: Exception, *_: object, **__: object) -> NoReturn:
    raise RuntimeError(
        format_error(
            f"what {name} holds has changed since its program was made, and cannot be copied "
            f"({type(error).__name__}: {error})",
            "make new objects instead of changing them, or pass them as arguments.",
        )
    ) from error


class AsItWas:
    """The result of `as_it_was`."""

    def __init__(self, fun: Callable[..., Any], copied: Callable[..., Any], copies: _Copies):
        self._fun, self._copied, self._copies = fun, copied, copies
        self._known = self._look()

    def __call__(self, *args: object, **kwargs: object) -> Any:
        value, tensors = self._look()
        same = value == self._known[0] and _same(tensors, self._known[1])
        return (self._fun if same else self._copied)(*args, **kwargs)

    def _look(self) -> tuple[object, list[Any]]:
        walk = Fingerprinter()
        walk.refuses = False
        with lock.unless_refused():
            return walk.value(tuple(self._copies.originals)), walk.tensors


class _Copies:
    """Copies of a function's values, each made once.

    Tensors are not copied: they are inputs of the program, by identity. Nor are objects that count
    by identity, those without attributes, which stand for themselves, and those with a `__del__`,
    which would be run for the copy too.

    Args:
        objects: whether objects are copied too, and not only functions and containers.

    Attributes:
        originals: the objects that were copied.
    """

    def __init__(self, objects: bool = False):
        self._objects = objects
        self._made: dict[int, Any] = {}
        self._alive: list[object] = []  # so that no other object gets the same id
        self.originals: list[object] = []

    def of(self, x: Any) -> Any:
        """The copy of anything."""
        if id(x) in self._made:
            return self._made[id(x)]
        kind = type(x)
        if kind is list:
            held: list[Any] = self._note(x, [])
            held += map(self.of, x)
            return held
        if kind is dict:
            items: dict[Any, Any] = self._note(x, {})
            items.update((self._key(k), self.of(v)) for k, v in x.items())
            return items
        if kind is tuple:
            parts = tuple(map(self.of, x))
            return x if _same(parts, x) else parts
        if kind in (np.ndarray, bytearray, array.array):
            return self._note(x, copy.copy(x))
        if isinstance(x, functools.partial):
            inside = self.of(x.func), *map(self.of, x.args)
            return functools.partial(*inside, **{k: self.of(v) for k, v in x.keywords.items()})
        if isinstance(x, types.MethodType):
            return self._method(x)
        if isinstance(x, types.FunctionType):
            return self._function(x)
        return self._object(x) if self._objects else x

    def _note(self, x: object, copied: T) -> T:
        self._made[id(x)] = copied
        self._alive.append(x)
        return copied

    def _key(self, x: object) -> Any:
        """The copy of the key of a dict, or of the element of a set."""
        return self.of(x) if self._objects else x

    def _method(self, x: types.MethodType) -> Any:
        owner = x.__self__
        if self._objects:
            held = self.of(owner)
        elif isinstance(owner, Wrapper):
            held = copy.copy(owner)
            held.fun = self.of(owner.fun)
        else:
            return x
        return x if held is owner else types.MethodType(self.of(x.__func__), held)

    def _function(self, x: types.FunctionType) -> types.FunctionType:
        old = x.__closure__ or ()
        if not old and not self._objects:
            return x
        cells = [self._made.get(id(c)) or self._note(c, types.CellType()) for c in old]
        result = types.FunctionType(
            x.__code__, x.__globals__, x.__name__, x.__defaults__, closure=tuple(cells)
        )
        result.__kwdefaults__, result.__qualname__ = x.__kwdefaults__, x.__qualname__
        result.__dict__.update(x.__dict__)
        self._note(x, result)
        for cell, new in zip(old, cells, strict=True):
            with contextlib.suppress(ValueError):  # Not bound yet, or copied before.
                content = cell.cell_contents
                if id(new) not in self._made:
                    self._note(new, new)
                    new.cell_contents = self.of(content)
        if self._objects and not self._give_parts(x, result) and not old:
            return self._note(x, x)
        return result

    def _give_parts(self, x: types.FunctionType, made: types.FunctionType) -> bool:
        """Give a copy what `snapshot_closure` shares: defaults and attributes; returns whether it
        differs.
        """
        found = len(self.originals)
        if x.__defaults__:
            made.__defaults__ = tuple(map(self._shared, x.__defaults__))
        if x.__kwdefaults__:
            made.__kwdefaults__ = self._dict(x.__kwdefaults__)
        made.__dict__.update(self._dict(x.__dict__))
        return len(self.originals) > found

    def _dict(self, x: dict[str, Any]) -> dict[str, Any]:
        return {k: self._shared(v) for k, v in x.items()}

    def _shared(self, x: Any) -> Any:
        """The copy of something that functions made by `snapshot_closure` share with the
        original.
        """
        copied = self.of(x)
        if copied is not x:
            self.originals.append(x)
        return copied

    def _object(self, x: Any) -> Any:
        kind = type(x)
        if isinstance(x, Wrapper):
            return self._wrapper(x)
        if isinstance(x, weakref.ref):
            target = x()
            held = self.of(target)
            return x if held is target else weakref.ref(held)
        if isinstance(x, types.BuiltinFunctionType):
            owner = x.__self__
            held = owner if isinstance(owner, types.ModuleType) else self._shared(owner)
            return x if held is owner else getattr(held, x.__name__)
        if isinstance(x, (tuple, frozenset)):
            held = snapshots.stored(x)
            parts = [*map(self._key, held)]
            if not _vars_of(x) and _same(parts, held):
                return x
            return self._filled(x, snapshots.base_of(x).__new__(kind, parts))
        if isinstance(x, list):
            made: Any = self._note(x, list.__new__(kind))
            list.extend(made, map(self.of, snapshots.stored(x)))
        elif isinstance(x, dict):
            made, base = self._note(x, dict.__new__(kind)), snapshots.base_of(x)
            for k, v in zip(*snapshots.keys_and_values(x), strict=True):
                base.__setitem__(made, self._key(k), self.of(v))
            if isinstance(x, collections.defaultdict):
                made.default_factory = self.of(x.default_factory)
        elif isinstance(x, set):
            made = self._note(x, set.__new__(kind))
            set.update(made, map(self._key, snapshots.stored(x)))
        elif isinstance(x, collections.deque):
            made = self._note(x, collections.deque.__new__(kind))
            collections.deque.__init__(made, (), x.maxlen)
            collections.deque.extend(made, map(self.of, snapshots.stored(x)))
        elif consists_of_attributes(kind) and not hasattr(kind, "__del__"):
            if not _vars_of(x):
                return x
            base = types.SimpleNamespace if isinstance(x, types.SimpleNamespace) else object
            made = self._note(x, base.__new__(kind))
        else:
            return x
        return self._filled(x, made)

    def _filled(self, x: object, made: T) -> T:
        """A copy with its attributes."""
        self._note(x, made)
        self.originals.append(x)
        for name, v in _vars_of(x).items():
            if name in getattr(x, "__dict__", ()):
                vars(made)[name] = self.of(v)
            else:
                object.__setattr__(made, name, self.of(v))
        return made

    def _wrapper(self, x: Wrapper) -> Any:
        found = len(self.originals)
        if isinstance(x, Bundle):
            made: Any = Bundle(map(self.of, x.funs))
        elif isinstance(x, Part):
            made = Part(self.of(x.fun), x.options)
        else:
            reduced = x.__reduce__() if type(x).__reduce__ is not object.__reduce__ else ""
            if isinstance(reduced, str):
                return x
            made = reduced[0](*map(self.of, reduced[1]))
        return self._note(x, made if len(self.originals) > found else x)


def _same(some: snapshots.View, others: snapshots.View) -> bool:
    """Whether two collections hold the same objects, in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _vars_of(x: object) -> dict[str, Any]:
    """The attributes of an object, in its dict and in its slots."""
    slots = {n: getattr(x, n) for n in snapshots.all_slots(type(x)) if hasattr(x, n)}
    return {**slots, **getattr(x, "__dict__", {})}
