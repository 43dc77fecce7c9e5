"""Checking quickly whether anything has changed, without taking its value again.

NOTE [watching]: the value of what globals and closures hold is taken once. From then on, each call
only checks whether the same objects are in the same places (namespaces, containers, attributes and
cells), and whether classes are unchanged. All comparisons are by identity and run in C, about 20 ns
for each place, or 40 ns for all places that share a number.

NOTE [versions]: CPython numbers the states of every class (for its method cache) and, up to 3.12,
of every dict (3.13 leaves out those of attributes). An equal number shows with one read that
nothing changed; if it differs, contents are compared, because the change may not matter. A
function's code and attributes are checked in one read of the pointers in the function itself: the
watch keeps what they point to alive, so that equal pointers mean the same objects. Numbers and
pointers are at the same offsets in all supported versions of CPython with 64-bit pointers and a
GIL, whatever the processor; this is verified when the module is loaded. If it fails, and in other
Pythons, contents are compared.
"""

from __future__ import annotations

import abc
import collections
import ctypes
import itertools
import operator
import sys
import sysconfig
import types
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch.nn.parameter import is_lazy

from xfunc.cache.snapshots import MISSING, Look, View, content, views

T = TypeVar("T")


# Their offsets in an object: the first byte and the end.
_CLASS_VERSION, _DICT_VERSION = (384, 388), (24, 32)
_FUNCTION_PARTS, _CELL_CONTENT = (48, 96), (16, 24)  # of a function: from its code to its __dict__

# The attributes of modules on loan (`xfunc.tools.modules`), as they were before.
lent: dict[torch.nn.Module, dict[str, Any]] = {}

_turns = 0  # how often all watches were ended

_read = operator.attrgetter("raw")
_dict_of = operator.attrgetter("__dict__")
_requires_grad = operator.attrgetter("requires_grad")
_aval = operator.attrgetter("requires_grad", "shape", "dtype")
_function_parts = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__", "__dict__")


def _place(x: object, part: tuple[int, int]) -> ctypes.Array[ctypes.c_char]:
    start, end = part
    return (ctypes.c_char * (end - start)).from_address(id(x) + start)


def _class_versions_work() -> bool:
    cls = type("C", (), {"a": 1})
    tag = _place(cls, _CLASS_VERSION)
    seen = set()
    for k in range(4):
        cls.a = k  # pyright: ignore[reportAttributeAccessIssue]
        _touch(cls)
        seen.add(tag.raw)
    before = tag.raw
    _touch(cls)
    return len(seen) == 4 and bytes(4) not in seen and tag.raw == before


def _dict_versions_work() -> bool:
    d: dict[str, object] = {"a": 0}
    tag = _place(d, _DICT_VERSION)
    seen = {tag.raw}
    for change in (lambda: d.update(a=1), lambda: d.update(b=1), lambda: d.pop("b")):
        change()
        seen.add(tag.raw)
    exec("a = 5", d)
    seen.add(tag.raw)
    return len(seen) == 5 and _attribute_versions_work()


def _attribute_versions_work() -> bool:
    x: Any = type("C", (), {})()
    x.a = None
    tag = _place(x.__dict__, _DICT_VERSION)

    def store(value: object) -> bool:  # The interpreter specialises this as it runs.
        before = tag.raw
        x.a = value
        return tag.raw != before

    stores = [store(float(k)) for k in range(200)]
    before = tag.raw
    object.__setattr__(x, "a", 1)
    return all(stores) and tag.raw != before


def _pointers_work() -> bool:
    def f(a: object = 1, *, b: object = 2) -> object:
        return a, b, cell

    cell = 0
    closure: Any = f.__closure__
    other = (lambda: None).__code__.replace(co_freevars=f.__code__.co_freevars)
    changes = [
        lambda: setattr(f, "__code__", other),
        lambda: setattr(f, "__defaults__", (3,)),
        lambda: setattr(f, "__kwdefaults__", {"b": 3}),
        lambda: setattr(f, "__dict__", {"c": 1}),
    ]
    kept = list(_function_parts(f))
    parts, held = _place(f, _FUNCTION_PARTS), _place(closure[0], _CELL_CONTENT)
    seen: set[bytes] = {parts.raw}
    for change in changes:
        change()
        kept += _function_parts(f)
        seen.add(parts.raw)
    before = held.raw
    cell = kept
    return len(seen) == 5 and [before, held.raw] == [
        id(x).to_bytes(8, sys.byteorder) for x in (0, kept)
    ]


def _touch(cls: type) -> None:
    """Make Python number the current state of a class."""
    getattr(cls, "_xfunc_looks_this_up", None)


# Elsewhere, what stands at these offsets may not even be part of the object.
_layout_is_known = (
    sys.implementation.name == "cpython"
    and ctypes.sizeof(ctypes.c_void_p) == 8
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
_class_versions = _layout_is_known and _class_versions_work()
_dict_versions = _layout_is_known and _dict_versions_work()
_has_pointers = _layout_is_known and _pointers_work()


def end_watches() -> None:
    """Make every existing watch report a change: what counts is different now."""
    global _turns
    _turns += 1


class Namespace:
    """The values of some names in a dict, or of all names if none are given."""

    def __init__(self, names: dict[str, object], watched: Iterable[str] | None = None):
        self._dict, self._names = names, None if watched is None else tuple(watched)
        self._all, self._held = tuple(names), list(self._now())
        # Moving an item within an OrderedDict leaves its number as it is.
        numbered = _dict_versions and not isinstance(names, collections.OrderedDict)
        self.tag = _place(names, _DICT_VERSION) if numbered else None

    def same(self) -> bool:
        """Whether all are unchanged."""
        if self._names is None and tuple(self._dict) != self._all:
            return False
        return all(map(operator.is_, self._now(), self._held))

    def _now(self) -> Iterable[object]:
        if self._names is None:
            return self._dict.values()
        get = self._dict.get
        return [get(n, MISSING) for n in self._names]


class Watch:
    """The current contents of mutable things, to check later whether they have changed.

    Args:
        things: containers, functions, objects with attributes, tensors.
        classes: classes whose attributes count, including those of their bases.
        namespaces: further namespaces that count.
    """

    def __init__(
        self,
        things: Iterable[Any],
        classes: Iterable[type] = (),
        namespaces: Iterable[Namespace] = (),
    ):
        self._turn = _turns
        things, self._classes = list({id(t): t for t in things}.values()), list(classes)
        self._functions = [t for t in things if type(t) is types.FunctionType]
        self._parts = _flat(map(_function_parts, self._functions))
        own = [t for t in things if _has_attributes(t)]
        self._objects = [t for t in own if type(t) is not types.FunctionType]
        self._own_dicts = list(map(_dict_of, self._objects))
        self._kinds = list(map(type, self._objects))
        dicts = [*map(_dict_of, own), *(t for t in things if _is_plain(t))]
        self._namespaces = [*map(Namespace, dicts), *namespaces]
        tensors = [t for t in things if isinstance(t, torch.Tensor)]
        self._tensors = list(filter(has_shape, tensors))
        self._shapeless = [t for t in tensors if not has_shape(t)]
        self._avals = self._avals_now()
        cells = [c for f in self._functions for c in f.__closure__ or ()]
        self._cells = [c for c in cells if content(c) is not MISSING]
        self._contained = list(map(content, self._cells))
        pointers: list[ctypes.Array[ctypes.c_char]] = []
        if _has_pointers:
            pointers = [_place(f, _FUNCTION_PARTS) for f in self._functions]
            pointers += [_place(c, _CELL_CONTENT) for c in self._cells]
        self._views: list[View] = [Look(_content_of, c) for c in cells if content(c) is MISSING]
        for t in things:
            self._views += views(t)
        self._registrations = abc.get_cache_token()  # of classes, by `abc.ABC.register`
        self._lengths = list(map(len, self._views))
        self._held = _flat(self._views)
        tags: list[ctypes.Array[ctypes.c_char]] = []
        if _class_versions:
            for cls in self._classes:
                _touch(cls)
            tags = [_place(c, _CLASS_VERSION) for c in self._classes]
        by_number = len(tags) == len(self._classes) and all(map(any, map(_read, tags)))
        self._contents = None if by_number else self._class_contents()
        # As long as a number is unchanged, nothing else about its object needs to be read.
        self._numbered = [n for n in self._namespaces if n.tag is not None]
        self._others = [n for n in self._namespaces if n.tag is None]
        self._places = [*tags, *pointers, *(n.tag for n in self._numbered)]
        self._n_exact = len(tags) + len(pointers)
        self._read = list(map(_read, self._places))
        rest = {
            self._same_others: self._others,
            self._same_objects: self._objects,
            self._same_functions: self._functions if not pointers else (),
            self._same_tensors: tensors,
            self._same_views: self._views,
            self._same_classes: self._contents,
            self._same_registrations: any(isinstance(c, abc.ABCMeta) for c in self._classes),
        }
        self._checks = [check for check, what in rest.items() if what]

    def same(self) -> bool:
        """Whether all contents are unchanged."""
        if self._turn != _turns:
            return False
        now = list(map(_read, self._places))
        if now != self._read and not self._same_again(now):
            return False
        for check in self._checks:  # noqa: SIM110 (a generator would cost more than the checks)
            if not check():
                return False
        return True

    def _same_again(self, now: list[bytes]) -> bool:
        n = self._n_exact
        if now[:n] != self._read[:n]:
            return False
        pairs = zip(now[n:], self._read[n:], self._numbered, strict=True)
        if not all(new == old or names.same() for new, old, names in pairs):
            return False
        self._read = now
        return True

    def _same_others(self) -> bool:
        return all(n.same() for n in self._others)

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

    def _class_contents(self) -> list[object]:
        dicts = [vars(base) for cls in self._classes for base in cls.__mro__]
        return [x for d in dicts for x in (*d, *d.values())]

    def _same_classes(self) -> bool:
        now, before = self._class_contents(), self._contents
        assert before is not None
        return len(now) == len(before) and all(map(operator.is_, now, before))

    def _same_registrations(self) -> bool:
        return abc.get_cache_token() == self._registrations


def has_shape(t: torch.Tensor) -> bool:
    """Whether a tensor can be asked for its shape."""
    return t.layout is torch.strided and not t.is_nested and not is_lazy(t)


def _is_plain(x: object) -> bool:
    return isinstance(x, dict) and all(type(k) is str for k in x)


def _has_attributes(x: object) -> bool:
    # Some objects, such as dict[str, int], show another object's attributes in a fresh dict.
    own = getattr(x, "__dict__", None)
    return isinstance(own, dict) and own is x.__dict__


def _flat(parts: Iterable[Iterable[object]]) -> list[object]:
    return list(itertools.chain.from_iterable(parts))


def _content_of(cell: types.CellType) -> tuple[object]:
    return (content(cell),)
