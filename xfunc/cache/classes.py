"""The current state of classes: their methods, properties and attributes, including their bases'.

Python allows a class to be changed while it has instances. A program traced before the change
contains the old methods, so the state of a class is part of the value of its instances.

For a user's class, everything counts by value; for a library's class, only that the same objects
have the same names, which is enough to notice that it was patched. Classes written in C cannot
change.
"""

from __future__ import annotations

import abc
import collections
import types
from _abc import _get_dump  # pyright: ignore[reportMissingImports]
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from xfunc.cache import changes
from xfunc.cache.changes import Changed
from xfunc.cache.mutation_guard import MutationGuard, end_watches
from xfunc.cache.snapshots import can_change
from xfunc.core.guards import MAX_STATES, State
from xfunc.core.locations import is_of_user

if TYPE_CHECKING:
    from xfunc.cache.fingerprint import ContentWalk

_MAX_CLASSES = 4096
# Made by Python from the other attributes of the class.
_DERIVED = frozenset(
    "__dict__ __weakref__ __module__ __doc__ __annotations__ __abstractmethods__ _abc_impl "
    "__static_attributes__ __firstlineno__ __dataclass_fields__ __dataclass_params__ "
    "__annotate__ __annotate_func__ __annotations_cache__".split()
)


def is_abstract(cls: type) -> bool:
    """Whether other classes can be registered with a user's class: its `abc.ABC.register`."""
    return isinstance(cls, abc.ABCMeta) and is_of_user(cls)


def registered(cls: type) -> list[type]:
    """The classes that were registered with an abstract class, by their names."""
    found = filter(None, (reference() for reference in _get_dump(cls)[0]))
    return sorted(found, key=lambda c: (c.__module__, c.__qualname__))


def is_derived(name: str) -> bool:
    """Whether Python makes an attribute of a class from its other attributes."""
    return name in _DERIVED


class ClassState:
    """A class, and all its states seen so far."""

    def __init__(self, cls: type):
        self.cls = cls
        self._volatile: set[tuple[type, str]] = set()
        self._own_states: dict[Hashable, State] = {}
        self._states: dict[Hashable, State] = {}
        self._own: State | None = None
        self._state: State | None = None
        self._all: list[ClassState] = []

    def __call__(self) -> State:
        """The state of the class, of the classes that it names, and of those of its values."""
        state = self._state
        return state if state is not None and self._watch_all.is_unchanged() else self._look()

    @property
    def everything(self) -> list[ClassState]:
        """This and the states of all classes that it depends on."""
        self()
        return self._all

    @property
    def functions(self) -> list[types.FunctionType]:
        """The functions that the class holds."""
        self.own()
        return self._walk.functions

    @property
    def modules(self) -> list[types.ModuleType]:
        """The modules that the class holds."""
        self.own()
        return self._walk.modules

    @property
    def mutables(self) -> list[object]:
        """The mutable objects that the class holds."""
        self.own()
        return self._walk.mutables

    @property
    def types(self) -> list[type]:
        """The class, and its own class if that can change."""
        return [c for c in (self.cls, type(self.cls)) if can_change(c)]

    def contents(self) -> dict[tuple[type, str], Hashable]:
        """The separate value of each attribute."""
        self.own()
        return self._contents

    def note_changes(self, before: dict[tuple[type, str], Hashable]) -> Changed:
        """Mark the places changed since `before` as volatile; returns the kinds of changes."""
        now = self.contents()
        if now is before:
            return Changed.NOTHING
        volatile, kinds = changes.between(before, now, now.keys() | before.keys())
        self._volatile |= volatile
        if volatile:
            self._own = self._state = None
            end_watches()
        return kinds

    def forget_changes(self) -> None:
        """Let changed attributes count again."""
        if self._volatile:
            self._volatile.clear()
            self._own = self._state = None
            end_watches()

    def own(self) -> State:
        """The state of the class alone: other classes count by identity."""
        if self._own is None or not self._same():
            walk, beside = _content_walk(), _content_walk()
            self._contents = {}
            for c, n, v in self._attributes():
                if (c, n) in self._volatile:
                    _value_in(beside, c, v)
                else:
                    self._contents[c, n] = _value_in(walk, c, v)
            walk.follow(beside)
            for c in filter(is_abstract, self.cls.__mro__):
                self._contents[c, "registered"] = tuple(map(walk.by_identity, registered(c)))
            self._walk = walk
            self._watch = MutationGuard(walk.mutables, self.types)
            self._own = _kept(self._own_states, tuple(self._contents.items()))
        return self._own

    def _same(self) -> bool:
        return self._own is not None and self._watch.is_unchanged()

    def _look(self) -> State:
        everything: dict[ClassState, None] = {self: None}
        todo = [self]
        while todo:
            state = todo.pop()
            state.own()
            new = [k for c in state._walk.classes if (k := known(c)) not in everything]
            everything.update(dict.fromkeys(new))
            todo += new
        self._all = list(everything)
        self._watch_all = self._watch
        if len(everything) > 1:
            mutables = [t for c in everything for t in c._walk.mutables]
            self._watch_all = MutationGuard(mutables, [k for c in everything for k in c.types])
        self._state = _kept(self._states, tuple([c.own() for c in self._all]))
        return self._state

    def _attributes(self) -> list[tuple[type, str, object]]:
        return [
            (c, n, v)
            for kind in self.types
            for c in kind.__mro__
            if can_change(c)
            for n, v in vars(c).items()
            if not is_derived(n)
        ]


def _kept(states: dict[Hashable, State], value: Hashable) -> State:
    state = states.setdefault(value, State(value))
    if len(states) > MAX_STATES:
        del states[next(iter(states))]
    return state


_walks: list[Callable[[], ContentWalk]] = []


def walk_with(walk: Callable[[], ContentWalk]) -> None:
    """Use this walk for the values in classes; it asks for their states too."""
    _walks[:] = [walk]


def _content_walk() -> ContentWalk:
    return _walks[0]()


def _value_in(walk: ContentWalk, cls: type, x: object) -> Hashable:
    """The value of an attribute of a class."""
    if not is_of_user(cls):
        return walk.by_identity(x)
    if isinstance(x, property):
        inside = tuple([_value_in(walk, cls, g) for g in (x.fget, x.fset, x.fdel)])
        return ("property", inside, _own(walk, x, property))
    if isinstance(x, (staticmethod, classmethod)):
        return ("method", walk.value_apart(x.__func__), _own(walk, x, staticmethod, classmethod))
    if isinstance(x, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        return walk.by_identity(x)
    return walk.value_apart(x)


def _own(walk: ContentWalk, x: object, *built_in: type) -> Hashable:
    """The class of a descriptor, and its own attributes if the class is not one of these."""
    if type(x) in built_in:
        return type(x)
    walk.mutables.append(x)
    return (walk.class_state(type(x)), walk.state(x))


_classes: collections.OrderedDict[int, ClassState] = collections.OrderedDict()


def known(cls: type) -> ClassState:
    """The states of a class that can change."""
    result = _classes.get(id(cls))
    if result is None:
        result = _classes[id(cls)] = ClassState(cls)
        if len(_classes) > _MAX_CLASSES:
            _classes.popitem(last=False)
    return result


def forget_changes() -> None:
    """Let all attributes of classes count by value again."""
    for state in list(_classes.values()):
        state.forget_changes()


def state_of(cls: type) -> State | None:
    """The current state of a class; None if it cannot change."""
    return known(cls)() if can_change(cls) else None
