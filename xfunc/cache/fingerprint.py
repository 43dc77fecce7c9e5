"""The value of any Python object in a key: equal values compute the same.

NOTE [aliases]: that a tensor occurs in two places of the key is itself part of the key. A program
traced while two closure cells held one tensor would otherwise be wrong when they hold two.

NOTE [equality is not enough]: ``-0.0 == 0.0``, ``range(0) == range(5, 5)``, and a class may define
``__eq__`` as it likes. So an object's value consists of its class in its current state and its
attributes, or, for an immutable object written in C, of its pickled form. Only library classes that
define a hash are compared by their own ``==``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import itertools
import logging
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from xfunc.cache import classes, mutated, mutation_guard, snapshots
from xfunc.cache.builtin_types import BUILTIN_METHODS, RULES, ById
from xfunc.cache.largest import largest
from xfunc.core.displays import is_display
from xfunc.core.guards import State
from xfunc.core.locations import is_of_user
from xfunc.core.wrappers import Bundle, Wrapper
from xfunc.errors import fail, kind_of, short_repr
from xfunc.torchlib.functorch import is_leaf, is_wrapped

_MAX_NODES = 1_000_000  # of one function's value

_ATOMS = (type(None), bool, int, str, bytes, type(Ellipsis), type(NotImplemented))
# A counter is read once in each trace, like a number that traced code increments.
_OPAQUE = (logging.Logger, torch.dtype, torch.device, torch.Generator, io.IOBase, itertools.count)
_FIXED = (
    *(tuple, frozenset, range, slice, types.MethodType, *BUILTIN_METHODS),
    *(types.GenericAlias, types.UnionType),
)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# The methods of classes of objects like `dataclasses.MISSING`.
_OF_MARKERS = frozenset(
    "__init__ __new__ __repr__ __str__ __bool__ __hash__ __copy__ __deepcopy__ __reduce__".split()
)


class Fingerprinter:
    """One visit to everything that a function holds.

    Attributes:
        tensors: the tensors found, each once.
        functions: the functions found.
        classes: the user's classes that were found, directly or through an instance, and the
            states in which they count.
        modules: the Python modules found.
        mutables: the mutable objects found; see `xfunc.cache.mutation_guard`.
        skipped: whether a place was found that does not count; see NOTE [volatile places].
        places: for each mutable place, its owner and its current content.
        refuses: whether to refuse objects that cannot be compared, as for the values of a user's
            function; other objects, classes and library functions may hold such objects for other
            purposes.
        holder: the function whose variables are visited, for messages.
        variable: the variable of it, likewise.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[int, str | None], tuple[object, Hashable]] | None = None
        self.refuses = True
        self.holder, self.variable = "a function", ""
        self.tensors: list[torch.Tensor] = []
        self.functions: list[types.FunctionType] = []
        self.classes: dict[type, State | None] = {}
        self.modules: list[types.ModuleType] = []
        self.mutables: list[object] = []
        self.skipped = False
        self._seen: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._alive: list[object] = []

    def value(self, x: object) -> Hashable:
        kind = type(x)
        if kind in _ATOMS:
            return (kind, x)
        if kind is float or kind is complex:
            return (kind, repr(x))  # nan equals itself, and 0.0 is not -0.0
        leaf = _leaf_rule_of(kind)
        if leaf is not None:
            return leaf(self, x)
        before = self._seen.get(id(x))
        if before is not None:
            return ("again", before)
        if len(self._seen) > _MAX_NODES:
            fail(
                ValueError,
                f"a function holds more than {_MAX_NODES:,} objects, whose values would "
                f"all be part of the cache key; most are in {largest(self._alive[0], self._seen)}",
                "pass the data as an argument (as tensors, or static), or make it a NumPy array.",
            )
        self._seen[id(x)] = len(self._seen)
        self._alive.append(x)
        if kind not in _FIXED and not isinstance(x, Wrapper):
            self.mutables.append(x)
        return _rule_of(kind)(self, x)

    def tensor(self, x: torch.Tensor) -> Hashable:
        slot = self._slots.setdefault(id(x), len(self.tensors))
        if slot == len(self.tensors):
            self.tensors.append(x)
        kind = type(x)
        if kind.__module__.startswith("xfunc."):  # a token, which has only an aval
            return ("tensor", slot, tuple(x.shape), x.dtype, None, None)
        known = kind is torch.Tensor
        if (not known and is_lazy(x)) or x.layout is not torch.strided or x.is_nested or x.is_meta:
            return ("tensor", slot, kind, x.layout)  # It has no strides, and will be refused.
        more = None
        # Only the aval of a traced value counts: its token will have no more.
        if not is_wrapped(x) and (x.is_cpu or (x.requires_grad and is_leaf(x))):
            more = (x.stride() if x.is_cpu else None, x.requires_grad)
            if x.__dict__ and (known or kind in _TENSORS or is_of_user(kind)):
                more = (*more, self.state(x))
        return ("tensor", slot, tuple(x.shape), x.dtype, None if known else kind, more)

    def class_state(self, cls: type) -> Hashable:
        """The current state of a class; see `xfunc.cache.classes`."""
        state = self.classes.get(cls) or classes.state_of(cls)
        if state is None:
            return ById(cls)
        self.classes[cls] = state
        return state

    def follow(self, other: Fingerprinter) -> None:
        """Merge another walk's results, except its mutables."""
        self.functions += other.functions
        self.modules += other.modules
        self.classes.update(other.classes)

    def watch(
        self, namespaces: Iterable[mutation_guard.Namespace] = ()
    ) -> mutation_guard.MutationGuard:
        """A guard of all visited objects and of some namespaces."""
        states = {c: None for cls in self.classes for c in classes.known(cls).everything}
        mutables = [t for state in states for t in state.mutables]
        kinds = [k for c in states for k in c.types]
        return mutation_guard.MutationGuard([*self.mutables, *mutables], kinds, namespaces)

    def all(self, xs: Iterable[object]) -> tuple[Hashable, ...]:
        return tuple([self.value(x) for x in xs])

    def state(self, x: object) -> Hashable:
        """The attributes of an object, by value."""
        named = getattr(x, "__dict__", None) or {}
        slots = snapshots.all_slots(type(x))
        if slots:
            named = {**named, **{n: getattr(x, n) for n in slots if hasattr(x, n)}}
        before, self.refuses = self.refuses, False
        try:
            if self.places is None and not mutated.count():
                return tuple([(n, self._attribute(v)) for n, v in named.items()])
            return tuple([(n, self.place(x, n, [v], attribute=True)) for n, v in named.items()])
        finally:
            self.refuses = before

    def _attribute(self, v: object) -> Hashable:
        kind = type(v)
        if kind in _ATOMS:
            return ((kind, v),)
        if kind not in RULES and _is_iterator(kind):  # Its owner is held for something else.
            return (ById(v),)
        return (self.value(v),)

    def place(
        self, owner: object, label: str | None, contents: Iterable[object], attribute: bool = False
    ) -> Hashable:
        """The value of the content of a mutable place."""
        mark = mutated.mark_of(owner, label)
        if mark is not None:
            self.skipped = True
            return mark
        contents = list(contents)
        if self.places is not None:
            self.places[id(owner), label] = (owner, tuple(map(_as_it_is, contents)))
        return self._attribute(contents[0]) if attribute else self.all(contents)


class StateFingerprinter(Fingerprinter):
    """A visit to an object's attributes, where tensors and modules count by identity."""

    def value(self, x: object) -> Hashable:
        if isinstance(x, torch.nn.Module):
            return ById(x)
        return super().value(x)

    def value_apart(self, x: object) -> Hashable:
        """The value of an object, independent of earlier visits."""
        self._seen.clear()
        return self.value(x)

    def tensor(self, x: torch.Tensor) -> Hashable:
        return ById(x)


class ContentWalk(StateFingerprinter):
    """A visit to the attributes of a class, where other classes count by identity."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False

    def class_state(self, cls: type) -> Hashable:
        if snapshots.can_change(cls):
            self.classes[cls] = None
        return ById(cls)

    def by_identity(self, x: object) -> Hashable:
        """The identity of an object."""
        return ById(x)


def consists_of_attributes(kind: type) -> bool:
    """Whether the instances of a class count by their attributes, and by nothing else."""
    return _leaf_rule_of(kind) is None and _rule_of(kind) is _attributes


def is_atom(x: object) -> bool:
    """Whether an object is immutable and has no parts."""
    return type(x) in (*_ATOMS, float, complex)


def _as_it_is(x: object) -> Hashable:
    """A key of the content of a place: its identity, or the value of an atom."""
    return (type(x), repr(x)) if is_atom(x) else id(x)


@functools.cache
def is_transparent(cls: type) -> bool:
    """Whether the whole state of a class's instances is in attributes, with none hidden in C.

    `object.__reduce_ex__` uses the same sum to decide what it may pickle.
    """
    pointers = sum(len(snapshots.slots_of(c)) for c in cls.__mro__)
    pointers += (cls.__dictoffset__ > 0) + (getattr(cls, "__weakrefoffset__", 0) > 0)
    size = object.__basicsize__ + tuple.__itemsize__ * pointers
    return cls.__basicsize__ == size and cls.__itemsize__ == 0


@functools.cache
def _is_iterator(cls: type) -> bool:
    """Whether reading an instance of a class changes it invisibly."""
    return issubclass(cls, Iterator) and not issubclass(cls, _OPAQUE) and not is_transparent(cls)


@functools.lru_cache(4096)
def _leaf_rule_of(kind: type) -> Callable[[Fingerprinter, Any], Hashable] | None:
    """How to value instances of a class that never count as found before."""
    if issubclass(kind, torch.Tensor):
        return lambda walk, x: walk.tensor(x)
    if issubclass(kind, _OPAQUE) or is_display(kind):
        return lambda walk, x: ById(x)
    if issubclass(kind, types.ModuleType):
        return _module
    if _is_of_xfunc(kind) or _is_of_test_runner(kind):
        return lambda walk, x: ById(x)
    return (lambda walk, x: ("class", walk.class_state(x))) if issubclass(kind, type) else None


def _is_of_xfunc(kind: type) -> bool:
    """Whether a class is one of xfunc's own kinds of objects: programs, caches, traces.

    The callables that transforms return count by their contents.
    """
    if not kind.__module__.startswith("xfunc.") or kind.__module__.startswith("xfunc.transforms."):
        return False
    by_value = (Wrapper, *RULES)
    return kind.__hash__ in (object.__hash__, None) and not issubclass(kind, by_value)


def _is_of_test_runner(kind: type) -> bool:
    """Whether a class belongs to pytest or unittest; their objects refer to all tests.

    A test's function holds its `TestCase`, and that its runner.
    """
    return kind.__module__.startswith("_pytest.") or (
        kind.__module__.startswith("unittest.") and kind.__name__ in ("_Outcome", "TestSuite")
    )


def _module(walk: Fingerprinter, x: types.ModuleType) -> Hashable:
    walk.modules.append(x)
    return ById(x)


@functools.lru_cache(4096)
def _rule_of(kind: type) -> Callable[[Fingerprinter, Any], Hashable]:
    """How to value the instances of a class."""
    if kind in RULES:
        return RULES[kind]
    if issubclass(kind, Wrapper):
        return _wrapper
    if issubclass(kind, enum.Enum):
        return _member
    for base, rule in RULES.items():
        if issubclass(kind, base):
            return functools.partial(_subclass, rule)
    if issubclass(kind, np.generic):
        return lambda walk, x: (kind, x.dtype, x.tobytes())
    own_hash = kind.__hash__ not in (object.__hash__, None)
    if own_hash and not dataclasses.is_dataclass(kind) and not is_of_user(kind):
        return _by_hash if snapshots.can_change(kind) else _as_pickled
    if is_transparent(kind):
        return _attributes
    if own_hash:
        return _as_pickled
    return _refused if _is_iterator(kind) else lambda walk, x: ById(x)


def _wrapper(walk: Fingerprinter, x: Wrapper) -> Hashable:
    inside = walk.all(x.funs) if isinstance(x, Bundle) else walk.value(x.fun)
    return (type(x), x.options, inside)


def _member(walk: Fingerprinter, x: object) -> Hashable:
    return (ById(x), walk.class_state(type(x)), walk.state(x))


def _subclass(
    rule: Callable[[Fingerprinter, object], Hashable], walk: Fingerprinter, x: object
) -> Hashable:
    """For a class derived from a built-in one, with attributes and methods of its own."""
    return (walk.class_state(type(x)), rule(walk, x), walk.state(x))


def _attributes(walk: Fingerprinter, x: object) -> Hashable:
    """For an object with its state in attributes; one without attributes may be compared by
    identity.
    """
    kind, state = type(x), walk.state(x)
    return (walk.class_state(kind), state or (ById(x) if _is_marker(kind) else state))


def _is_marker(cls: type) -> bool:
    """Whether instances without attributes are sentinels: only compared, by ``is``."""
    own = {n for c in cls.__mro__[:-1] for n, v in vars(c).items() if callable(v)}
    return own <= _OF_MARKERS and cls.__eq__ is object.__eq__


def _by_hash(walk: Fingerprinter, x: object) -> Hashable:
    try:
        hash(x)
    except TypeError:
        return ById(x)
    return (type(x), x)


def _as_pickled(walk: Fingerprinter, x: object) -> Hashable:
    """The value of an immutable object; see NOTE [equality is not enough]."""
    try:
        parts = x.__reduce_ex__(4)
    except Exception:
        return ById(x)
    return (type(x), parts if isinstance(parts, str) else walk.all(parts[:3]))


def _refused(walk: Fingerprinter, x: object) -> Hashable:
    if not walk.refuses:
        return ById(x)
    fail(
        TypeError,
        f"{walk.holder} holds {short_repr(x)} ({kind_of(x)}){walk.variable}, which gives different "
        "values each time it is read",
        "make it a list or tuple, or pass its values as an argument.",
    )


classes.walk_with(ContentWalk)
