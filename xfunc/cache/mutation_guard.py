"""A quick check for changes, without computing values again.

NOTE [watching]: the value of what globals and closures hold is taken once. From then on, each call
only checks whether the same objects are in the same places (namespaces, containers, attributes,
cells, and the attributes of classes). All comparisons are by identity and run in C, about 20 ns for
each place.
"""

from __future__ import annotations

import abc
import itertools
import operator
import types
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch.nn.parameter import is_lazy

from xfunc.cache.snapshots import MISSING, Look, View, can_change, content, is_namespace, views

T = TypeVar("T")


# The attributes of modules on loan (`xfunc.tools.modules`), as they were before.
swapped_modules: dict[torch.nn.Module, dict[str, Any]] = {}

_generation = 0  # bumped to invalidate every guard

_dict_of = operator.attrgetter("__dict__")
_mro_of = operator.attrgetter("__mro__")
_requires_grad = operator.attrgetter("requires_grad")
_aval = operator.attrgetter("requires_grad", "shape", "dtype")
_function_parts = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__", "__dict__")


def end_watches() -> None:
    """Make every existing guard report a change: the set of observed places is different now."""
    global _generation
    _generation += 1


class Namespace:
    """The values of some names in a dict, which may lack some of them."""

    def __init__(self, names: dict[str, object], watched: Iterable[str]):
        watched = tuple(watched)
        present = tuple([n for n in watched if n in names])
        self._dict, self._lacking = names, frozenset(watched).difference(present)
        # Of two names or more, so that it returns a tuple.
        self._get = operator.itemgetter(*present, *present[:1]) if present else None
        self._held = tuple([names[n] for n in present])

    def is_unchanged(self) -> bool:
        """Whether all are unchanged."""
        names = self._dict
        if self._lacking and not names.keys().isdisjoint(self._lacking):
            return False
        try:
            return self._get is None or all(map(operator.is_, self._get(names), self._held))
        except KeyError:
            return False


class MutationGuard:
    """The current contents of mutable objects, to check later whether they have changed.

    Args:
        mutables: containers, functions, objects with attributes, tensors.
        classes: classes to compare by their attributes, including those of their bases.
        namespaces: further namespaces that count.
    """

    def __init__(
        self,
        mutables: Iterable[Any],
        classes: Iterable[type] = (),
        namespaces: Iterable[Namespace] = (),
    ):
        self._made_in = _generation
        mutables, self._classes = list({id(t): t for t in mutables}.values()), list(classes)
        self._functions = [t for t in mutables if type(t) is types.FunctionType]
        self._parts = _flat(map(_function_parts, self._functions))
        own = [t for t in mutables if _has_attributes(t)]
        self._objects = [t for t in own if type(t) is not types.FunctionType]
        self._own_dicts = list(map(_dict_of, self._objects))
        self._kinds = list(map(type, self._objects))
        dicts = [*map(_dict_of, own), *(t for t in mutables if is_namespace(t))]
        self._namespaces = list(namespaces)
        tensors = [t for t in mutables if isinstance(t, torch.Tensor)]
        self._tensors = list(filter(has_shape, tensors))
        self._shapeless = [t for t in tensors if not has_shape(t)]
        self._avals = self._avals_now()
        cells = [c for f in self._functions for c in f.__closure__ or ()]
        self._cells = [c for c in cells if content(c) is not MISSING]
        self._contained = list(map(content, self._cells))
        self._views: list[View] = [Look(_content_of, c) for c in cells if content(c) is MISSING]
        for t in mutables:
            self._views += views(t)
        self._registrations = abc.get_cache_token()  # of classes, by `abc.ABC.register`
        self._lengths = list(map(len, self._views))
        self._held = _flat(self._views)
        bases = dict.fromkeys(base for cls in self._classes for base in cls.__mro__)
        dicts += [vars(base) for base in bases if can_change(base)]
        self._whole = [(d, tuple(d), tuple(d.values())) for d in dicts]
        self._mros = [cls.__mro__ for cls in self._classes]
        rest = {
            self._same_namespaces: self._whole or self._namespaces,
            self._same_objects: self._objects,
            self._same_functions: self._functions,
            self._same_tensors: tensors,
            self._same_views: self._views,
            self._same_bases: self._classes,
            self._same_registrations: any(isinstance(c, abc.ABCMeta) for c in self._classes),
        }
        self._checks = [check for check, what in rest.items() if what]

    def is_unchanged(self) -> bool:
        """Whether all contents are unchanged."""
        if self._made_in != _generation:
            return False
        for check in self._checks:  # noqa: SIM110 (a generator would cost more than the checks)
            if not check():
                return False
        return True

    def _same_namespaces(self) -> bool:
        for names, keys, held in self._whole:
            if tuple(names) != keys or not all(map(operator.is_, names.values(), held)):
                return False
        return all(n.is_unchanged() for n in self._namespaces)

    def _same_objects(self) -> bool:
        return all(map(operator.is_, map(_dict_of, self._objects), self._own_dicts)) and all(
            map(operator.is_, map(type, self._objects), self._kinds)
        )

    def _same_functions(self) -> bool:
        parts = itertools.chain.from_iterable(map(_function_parts, self._functions))
        return all(map(operator.is_, parts, self._parts)) and (
            not self._cells or all(map(operator.is_, map(content, self._cells), self._contained))
        )

    def _same_tensors(self) -> bool:
        return self._avals_now() == self._avals

    def _avals_now(self) -> list[object]:
        return [*map(_aval, self._tensors), *map(_requires_grad, self._shapeless)]

    def _same_views(self) -> bool:
        found = self._views
        return list(map(len, found)) == self._lengths and all(
            map(operator.is_, itertools.chain.from_iterable(found), self._held)
        )

    def _same_bases(self) -> bool:
        return all(map(operator.is_, map(_mro_of, self._classes), self._mros))

    def _same_registrations(self) -> bool:
        return abc.get_cache_token() == self._registrations


def has_shape(t: torch.Tensor) -> bool:
    """Whether a tensor can be asked for its shape."""
    return t.layout is torch.strided and not t.is_nested and not is_lazy(t)


def _has_attributes(x: object) -> bool:
    # Some objects, such as dict[str, int], show another object's attributes in a fresh dict.
    own = getattr(x, "__dict__", None)
    return isinstance(own, dict) and own is x.__dict__


def _flat(parts: Iterable[Iterable[object]]) -> list[object]:
    return list(itertools.chain.from_iterable(parts))


def _content_of(cell: types.CellType) -> tuple[object]:
    return (content(cell),)
