"""The globals that a function names, as part of what its programs depend on.

Python looks up a global when the function runs; a program has its value built in. In a notebook,
where everything is global, rebinding a name or redefining a helper must make a new program, or
`xf.grad` would keep using the old value. So each function has a guard (see `xfunc.core.guards`) on
everything it reaches by name.

NOTE [reachable names]: the names are read from the code, without running it: those in the function,
in functions that it names or holds, in the methods of classes, in functions found in the objects
with those names, and so on, throughout the user's program. Of a Python module of the program, the
attributes that any of this code mentions count. An undefined name counts too: it may be defined
later. Installed packages are assumed not to change, except for their classes. A tensor counts by
identity, other values as in a closure (see `xfunc.cache.fingerprint`).
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Collection, Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from xfunc.cache import changes, classes, mutation_guard
from xfunc.cache.builtin_types import ById
from xfunc.cache.changes import Changed
from xfunc.cache.fingerprint import Fingerprinter, StateFingerprinter
from xfunc.cache.names import names_in
from xfunc.cache.snapshots import MISSING
from xfunc.core.guards import MAX_STATES, State
from xfunc.core.locations import is_of_program, is_of_user, module_is_of_user, name_is_of_user
from xfunc.tree import Structure

Place = tuple[int, str]  # the id of a namespace, and a name in it
_LOADED: dict[str, Any] = sys.modules
_DATA = (torch.Tensor, torch.nn.Module, np.ndarray)


Snapshot = tuple["_Reach", dict[classes.ClassState, dict[tuple[type, str], Hashable]]]
"""The values of globals and class attributes at some time."""


class Reached(NamedTuple):
    """The objects that functions reach by name.

    Attributes:
        places: namespaces, and names in them.
        changes: whether the functions changed some places, which no longer count.
    """

    places: list[tuple[dict[str, object], str]]
    changes: bool


class Globals:
    """Guards functions against changes of objects that they reach by name.

    Args:
        functions: the code and the namespace of each.
        modules: Python modules that they hold.
        kinds: classes whose methods they may call.
    """

    what = "a global"

    def __init__(
        self,
        functions: Iterable[tuple[types.CodeType, dict[str, object]]],
        modules: Iterable[types.ModuleType],
        kinds: Iterable[type] = (),
    ):
        self._functions, self._modules, self._kinds = list(functions), list(modules), list(kinds)
        self._volatile: set[Place] = set()
        self._states: dict[Hashable, State] = {}
        self._state: State | None = None

    def __bool__(self) -> bool:
        return bool(self._now().places)

    def snapshot(self) -> Snapshot:
        """The current value of each global and of each class attribute."""
        reach = self._now()
        return reach, {c: c.contents() for c in map(classes.known, reach.walk.classes)}

    def note_changes(self, before: Snapshot) -> Changed:
        """Ignore from now on what has changed since then; returns the kinds of changes.

        See `xfunc.cache.changes`.
        """
        after, old = self._now(), before[0]
        kinds = Changed.NOTHING
        if after is not old:
            both = old.values.keys() & after.values.keys()
            volatile, kinds = changes.between(old.values, after.values, both)
            self._volatile |= volatile
        kinds |= Changed.any(cls.note_changes(contents) for cls, contents in before[1].items())
        if after is not old or kinds is not Changed.NOTHING:
            self._state = None
        return kinds

    def __call__(self) -> State:
        if self._state is not None and self._watch.is_unchanged():
            return self._state
        return self._look()[1]

    def _now(self) -> _Reach:
        """The values reached now."""
        return (
            self._last
            if self._state is not None and self._watch.is_unchanged()
            else self._look()[0]
        )

    def survives(self) -> bool:
        """Forget all states but the current one; returns whether that may be kept: it has no data.

        What `xfunc.clear_caches` leaves must not keep a tensor alive that a global names now.
        """
        if self._state is None or self._volatile or not self._watch.is_unchanged():
            return False
        if any(isinstance(x, _DATA) for x in self._last.walk.mutables):
            return False
        self._states = {self._state.value: self._state}
        return True

    def reached(self) -> Reached:
        """All objects that are reachable by name now."""
        found = self._reach()
        places = [(namespace, name) for (_, name), namespace in found.places.items()]
        return Reached(places, bool(self._volatile))

    def _look(self) -> tuple[_Reach, State]:
        reach = self._reach()
        named = tuple([(name, value) for (_, name), value in reach.values.items()])
        places = tuple([key for key, _ in reach.values])
        value = named, places, tuple(reach.others), tuple(reach.kinds), reach.aliases()
        state = self._states.setdefault(value, State(value))
        if len(self._states) > MAX_STATES:
            del self._states[next(iter(self._states))]
        if (
            not mutation_guard.swapped_modules
        ):  # The current contents of modules on loan must not be kept.
            self._keep(reach)
            self._state = state
        return reach, state

    def _keep(self, reach: _Reach) -> None:
        self._last = reach
        names: dict[int, tuple[dict[str, object], list[str]]] = {}
        for (key, name), namespace in reach.places.items():
            names.setdefault(key, (namespace, []))[1].append(name)
        self._watch = reach.walk.watch(mutation_guard.Namespace(*found) for found in names.values())

    def _reach(self) -> _Reach:
        reach = _Reach(self._volatile)
        reach.run(self._functions, self._modules, self._kinds)
        return reach


class Guards:
    """The guards of the functions with one `code_key`, by the values that the functions hold."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Globals] = {}

    def clear(self) -> None:
        """Forget the guards whose globals have changed or hold data; the others stay valid."""
        self._known = {key: g for key, g in self._known.items() if g.survives()}

    def of(self, fun: object, structure: Structure | None = None) -> Globals:
        """The guard of a function.

        Of the classes in the structure of its arguments it may call methods; and functions that are
        part of the structure.
        """
        walk, beside = Fingerprinter(), Fingerprinter()
        walk.value(fun)
        if structure is not None:
            beside.refuses = False
            beside.value(structure.__getstate__())
        kinds = tuple(filter(is_of_user, beside.classes))
        functions = {
            (f.__code__, id(f.__globals__)): f.__globals__
            for f in (*walk.functions, *_functions_of(walk.classes), *beside.functions)
            if is_of_program(f.__code__)
        }
        modules = {id(m): m for m in (*walk.modules, *_modules_of(walk.classes), *beside.modules)}
        key = (tuple(functions), tuple(modules), kinds)
        result = self._known.get(key)
        if result is None:
            starts = [(code, namespace) for (code, _), namespace in functions.items()]
            result = self._known[key] = Globals(starts, modules.values(), kinds)
            if len(self._known) > MAX_STATES:
                del self._known[next(iter(self._known))]
        return result


def _functions_of(kinds: Iterable[type]) -> list[types.FunctionType]:
    return [f for c in kinds if is_of_user(c) for f in classes.known(c).functions]


def _modules_of(kinds: Iterable[type]) -> list[types.ModuleType]:
    return [m for c in kinds if is_of_user(c) for m in classes.known(c).modules]


class _GlobalFingerprinter(StateFingerprinter):
    """A visit to what globals hold: torch modules too, but not the data of their tensors."""

    def value(self, x: object) -> Hashable:
        if not isinstance(x, torch.nn.Module):
            return super().value(x)
        if id(x) in self._seen:
            return ("again", self._seen[id(x)])
        self._seen[id(x)] = len(self._seen)
        self._alive.append(x)
        self.mutables.append(x)
        attributes = mutation_guard.swapped_modules.get(x) or vars(x)
        state = tuple([(n, self.value(v)) for n, v in attributes.items()])
        return ("module", ById(x), self.class_state(type(x)), state)

    def tensor(self, x: torch.Tensor) -> Hashable:
        kind = type(x)
        if kind.__module__.startswith("xfunc."):
            return ById(x)
        self.mutables.append(x)
        form = (tuple(x.shape), x.dtype) if mutation_guard.has_shape(x) else None
        return (ById(x), kind, x.requires_grad, form, self.state(x) if x.__dict__ else None)


class _Reach:
    """See NOTE [reachable names].

    Attributes:
        places: namespaces by place.
        values: the value in each place, by itself.
        others: values that are not reached by name.
        kinds: the states of the classes that it began with.
        walk: over these values.
    """

    def __init__(self, volatile: set[Place]):
        self._volatile = volatile
        self.places: dict[Place, dict[str, object]] = {}
        self.values: dict[Place, Hashable] = {}
        self.others: list[Hashable] = []
        self.kinds: list[Hashable] = []
        self.walk = _GlobalFingerprinter()
        self._codes: dict[tuple[types.CodeType, int], None] = {}
        self._mentioned: dict[str, None] = {}
        self._modules: dict[int, types.ModuleType] = {}
        self._followed: set[Place] = set()
        self._looked_at: dict[int, int] = {}  # by module, how many of the mentioned names

    def run(
        self,
        functions: Iterable[tuple[types.CodeType, dict[str, object]]],
        modules: Iterable[types.ModuleType],
        kinds: Iterable[type],
    ) -> None:
        """Find everything that functions, and methods of classes, reach."""
        self._add_modules(modules)
        self.kinds += map(self.walk.value_apart, kinds)
        todo = list(functions)
        functions_seen = classes_seen = modules_seen = 0
        while todo or modules_seen < len(self._modules) or classes_seen < len(self.walk.classes):
            for code, namespace in todo:
                self._visit(code, namespace)
            modules_seen = len(self._modules)
            self._visit_modules()
            found = self.walk.functions[functions_seen:]
            kinds = list(self.walk.classes)[classes_seen:]
            functions_seen += len(found)
            classes_seen += len(kinds)
            self._add_modules((*self.walk.modules, *_modules_of(kinds)))
            todo = [
                (f.__code__, f.__globals__)
                for f in (*found, *_functions_of(kinds))
                if is_of_program(f.__code__)
            ]

    @property
    def mentioned(self) -> Collection[str]:
        """The names of attributes in the code that is reached."""
        return self._mentioned

    def aliases(self) -> tuple[int, ...]:
        """Which of the mutable objects found in several places are one and the same."""
        numbers: dict[int, int] = {}
        return tuple([numbers.setdefault(id(x), k) for k, x in enumerate(self.walk.mutables)])

    def _visit(self, code: types.CodeType, namespace: dict[str, object]) -> None:
        if (code, id(namespace)) in self._codes:
            return
        self._codes[code, id(namespace)] = None
        names = names_in(code)
        self._mentioned.update(names.mentioned)
        direct: list[object] = []
        for name in names.looked_up:
            value = namespace.get(name, MISSING)
            if value is MISSING and hasattr(builtins, name):
                self._add(builtins.__dict__, name)
            self._add(namespace, name)
            direct.append(value)
        for name in filter(None, (i.resolved(namespace) for i in names.imports)):
            self._add(_LOADED, name)
            direct.append(_LOADED.get(name))
        if names.by_text:
            for name in names.by_text:
                if name in namespace or "globals" in names.looked_up:
                    self._add(namespace, name)
        if "environ" in names.mentioned or "getenv" in names.mentioned:
            self.others.append(self.walk.value_apart(os.environ))
        # A module may gain an attribute that it lacks now.
        for module in direct:
            if isinstance(module, types.ModuleType) and _is_of_user(module):
                self._add_all(vars(module), names.mentioned)

    def _visit_modules(self) -> None:
        names = list(self._mentioned)
        for key, module in list(self._modules.items()):
            namespace = vars(module)
            new = names[self._looked_at.get(key, 0) :]
            for name in filter(namespace.__contains__, new):
                self._add(namespace, name)
            self._looked_at[key] = len(names)

    def _add_modules(self, modules: Iterable[types.ModuleType]) -> None:
        self._modules.update({id(m): m for m in modules if _is_of_user(m)})

    def _add(self, namespace: dict[str, object], name: str) -> None:
        place, value = (id(namespace), name), namespace.get(name, MISSING)
        if place in self._volatile:
            self._follow(place, value)
        elif place not in self.places:
            self.places[place] = namespace
            self.values[place] = self._value(value, name)

    def _follow(self, place: Place, x: object) -> None:
        """Find what an object leads to that does not count itself."""
        if place not in self._followed and x is not MISSING:
            self._followed.add(place)
            beside = _GlobalFingerprinter()
            beside.value(x)
            self.walk.follow(beside)

    def _add_all(self, namespace: dict[str, object], names: Iterable[str]) -> None:
        """Add names, of which the namespace may lack some: these are only watched."""
        lacking: list[str] = []
        for name in names:
            if name in namespace:
                self._add(namespace, name)
            else:
                lacking.append(name)
        self.places.update(dict.fromkeys([(id(namespace), name) for name in lacking], namespace))

    def _value(self, x: object, name: str) -> Hashable:
        if x is MISSING:
            return "nothing"
        if isinstance(x, types.ModuleType):
            self._add_modules([x])
            return ById(x)
        if _is_fixed(x, name):
            return ById(x)
        self.walk.variable = f" in the global {name!r}"
        return self.walk.value_apart(x)


def _is_of_user(module: types.ModuleType) -> bool:
    return module_is_of_user(module, module.__name__)


def _is_fixed(x: object, name: str) -> bool:
    """Whether a name still refers to the library's original object."""
    if isinstance(x, types.FunctionType):  # A decorator's is of the module that it decorates.
        is_library = not is_of_program(x.__code__) and not name_is_of_user(x.__module__)
        return is_library and x.__name__ == name
    if isinstance(x, type):
        return not is_of_user(x) and x.__name__ == name
    if isinstance(x, types.BuiltinFunctionType):
        return x.__self__ is None or isinstance(x.__self__, types.ModuleType)
    return False
