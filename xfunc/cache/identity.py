"""The value of a function, which distinguishes it from others.

A function's *value* is its code together with all values that it holds: closure cells, defaults,
arguments of a partial, the object of a bound method. Tensors among these do not count by value:
they become inputs of the program, keyed by shape and dtype only. So a lambda that closes over the
newest batch hits, and a changed number, dtype or shape misses. `xfunc.cache.fingerprint` defines
the value of all other objects.

The same holds for what a callback (`xfunc.debug`) holds: a list that collects its arguments is that
list, not any list that happens to be equal.

Globals that a function names are not part of its value; see `xfunc.cache.globals`.
"""

from __future__ import annotations

import array
import functools
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np
import torch

from xfunc.backends.lock import lock
from xfunc.cache import changes, classes, mutated
from xfunc.cache.builtin_types import ById
from xfunc.cache.changes import Changed
from xfunc.cache.fingerprint import Fingerprinter, is_atom
from xfunc.cache.mutation_guard import MutationGuard
from xfunc.cache.snapshots import can_change
from xfunc.core.locations import function_name
from xfunc.core.wrappers import Bundle, Wrapper
from xfunc.errors import format_error
from xfunc.torchlib import functorch
from xfunc.torchlib.storageless import is_without_memory


def places_of(fun: object) -> dict[tuple[int, str | None], tuple[object, Hashable]]:
    """The places that a function holds, and their contents."""
    walk = Fingerprinter()
    walk.places = {}
    walk.value(fun)
    return walk.places


def mutables_in(fun: object) -> list[object]:
    """The mutable objects that a function holds."""
    walk = Fingerprinter()
    walk.value(fun)
    return walk.mutables


def class_contents(fun: object) -> dict[classes.ClassState, dict[tuple[type, str], Hashable]]:
    """The contents of the classes of what a function holds; see `ClassState.note_changes`."""
    walk = Fingerprinter()
    walk.value(fun)
    return {c: c.contents() for c in map(classes.known, walk.classes)}


def detached(
    captures: list[torch.Tensor], fun: object, others: Iterable[object]
) -> list[torch.Tensor]:
    """Captures, copied if they share memory with an array, which counts by its content.

    `torch.from_numpy` makes such tensors: an equal array finds the program even if this one has
    been written to since. `others` are objects that the function reaches without holding them.
    """
    if not any(t.device.type == "cpu" for t in captures):
        return captures
    spans = [span for x in (*mutables_in(fun), *others) if (span := _memory_of(x)) is not None]
    if not spans:
        return captures
    with torch._C.DisableTorchFunction(), functorch.bottom_level():
        return [t.clone() if _is_within(t, spans) else t for t in captures]


def _memory_of(x: object) -> tuple[int, int] | None:
    """The addresses of an array of numbers: the first one and the end."""
    if isinstance(x, (bytearray, array.array, memoryview)):
        x = np.frombuffer(x, np.uint8)
    if not isinstance(x, np.ndarray) or x.dtype == object:
        return None
    reach = [(n - 1) * step for n, step in zip(x.shape, x.strides, strict=True)]
    first = x.ctypes.data + sum(r for r in reach if r < 0)
    return first, first + sum(map(abs, reach)) + x.itemsize


def _is_within(t: torch.Tensor, spans: Iterable[tuple[int, int]]) -> bool:
    if t.device.type != "cpu" or is_without_memory(t):
        return False
    address = t.data_ptr()
    return any(first <= address < end for first, end in spans)


def note_changes(
    fun: object, before: dict[tuple[int, str | None], tuple[object, Hashable]]
) -> Changed:
    """Mark the places changed since `before` as volatile; returns the kinds of changes."""
    held = {key: content for key, (_, content) in before.items()}
    now = {key: content for key, (_, content) in places_of(fun).items()}
    found, kinds = changes.between(held, now, held.keys() & now.keys())
    if found:
        mutated.mark({key: before[key][0] for key in found})
    return kinds | Changed.VOLATILE if any(map(mutated.is_marked, before)) else kinds


def let_change(fun: object) -> bool:
    """Mark all places that a function holds as volatile; returns whether there are any."""
    places = places_of(fun)
    mutated.mark({key: owner for key, (owner, _) in places.items()})
    return bool(places)


def function_value(fun: object) -> tuple[Hashable, list[torch.Tensor]]:
    """A function's value, and the tensors that it holds."""
    with lock.unless_refused():  # It reads the states of classes, which are shared.
        return _walked(fun, Fingerprinter())


def _walked(fun: object, walk: Fingerprinter) -> tuple[Hashable, list[torch.Tensor]]:
    try:
        return walk.value(fun), walk.tensors
    except RecursionError:
        raise ValueError(
            format_error(
                f"{function_name(fun)} holds a structure that is nested too deep to compare",
                "pass the data as an argument, or flatten it.",
            )
        ) from None


def values_of_extra_deps(
    given: Iterable[tuple[Hashable, object]], held: list[torch.Tensor]
) -> tuple[tuple[tuple[Hashable, Hashable], ...], list[torch.Tensor]]:
    """The values of labelled objects that a program depends on in addition to its function.

    And the tensors held by these and, first, by the function: see NOTE [aliases].
    """
    walk = Fingerprinter()
    for t in held:
        walk.value(t)
    return tuple([(label, walk.value(x)) for label, x in given]), walk.tensors


class FunctionValue:
    """The value of one function, taken again only if something that it holds has changed.

    A function that holds tensors is examined each time: watching keeps objects alive, which must
    not happen to the tensors of the last step.
    """

    def __init__(self, fun: object):
        self._fun = fun
        self._watch: Constants | MutationGuard | None = constants(fun)
        self._found: tuple[Hashable, list[torch.Tensor]] | None = None
        self._looks = 0

    def check(self) -> Callable[[], bool] | None:
        """A function that returns whether the value is unchanged; None if it must be computed."""
        if self._found is None or self._watch is None or not self._watch.is_unchanged():
            return None
        return self._watch.is_unchanged

    def __call__(self) -> tuple[Hashable, list[torch.Tensor]]:
        """See `function_value`."""
        result = self._found
        if result is not None and self._watch is not None:
            if self._watch.is_unchanged():
                return result
            self._found = self._watch = None
        walk = Fingerprinter()
        result = _walked(self._fun, walk)
        if walk.tensors or walk.skipped:
            return result
        # Building a guard costs more than one walk, so wait until the function recurs unchanged.
        self._looks += 1
        if self._watch is None and self._looks > 1 and self._looks & (self._looks - 1) == 0:
            self._watch = walk.watch()
        if self._watch is not None:
            self._found = result
        return result


class Constants:
    """Functions that hold nothing, until they are given something else to run or hold."""

    def __init__(self, funs: list[types.FunctionType]):
        self._parts = [(f, f.__code__, f.__defaults__) for f in funs]

    def is_unchanged(self) -> bool:
        """Whether they are unchanged."""
        for f, code, defaults in self._parts:
            if f.__code__ is not code or f.__defaults__ is not defaults or f.__dict__:
                return False
        return True


def constants(fun: object) -> Constants | None:
    """The functions in `fun` if nothing in it can change, so that its value may be taken once."""
    found: list[types.FunctionType] = []
    return Constants(found) if _add_constants(fun, found) else None


def _add_constants(fun: object, found: list[types.FunctionType]) -> bool:
    if isinstance(fun, Bundle):
        return all(_add_constants(f, found) for f in fun.funs)
    if isinstance(fun, Wrapper):
        return _add_constants(fun.fun, found)
    if isinstance(fun, types.BuiltinFunctionType):
        return fun.__self__ is None or isinstance(fun.__self__, types.ModuleType)
    if not isinstance(fun, types.FunctionType):
        return isinstance(fun, type) and not can_change(fun)
    found.append(fun)
    held = fun.__closure__ or fun.__kwdefaults__ or fun.__dict__
    return not held and all(map(is_atom, fun.__defaults__ or ()))


def code_key(fun: object) -> Hashable:
    """The part of a function that is the same each time it is re-created."""
    if isinstance(fun, Bundle):
        return (Bundle, tuple(map(code_key, fun.funs)))
    if isinstance(fun, Wrapper):
        return (type(fun), fun.options, code_key(fun.fun))
    if isinstance(fun, functools.partial):
        return ("partial", code_key(fun.func))
    if isinstance(fun, types.MethodType):
        return ("method", code_key(fun.__func__))
    if isinstance(fun, types.FunctionType):
        return (fun.__code__, ById(fun.__globals__))
    return type(fun) if not isinstance(fun, (type, types.BuiltinFunctionType)) else ById(fun)


def root_of(fun: object) -> Any:
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
    mutated.forget()
    classes.forget_changes()
