"""Digests of Python objects: equal in two processes only for what computes the same.

The value of a function in the key of a program (`xfunc.cache.valuation`) is compared within one
process, where objects may count by identity. A digest is of contents only: code, defaults, cells,
attributes, classes. What has no contents that can be told for certain raises `Unknown`.
"""

from __future__ import annotations

import contextvars
import enum
import functools
import hashlib
import logging
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import optree
import torch

from xfunc.cache import classes, views, volatile
from xfunc.cache.impure import is_known
from xfunc.cache.names import Names
from xfunc.cache.obscure import has_fixed_order, is_obscure
from xfunc.cache.valuation import is_transparent
from xfunc.core.locations import is_of_program, is_of_user, module_is_of_user
from xfunc.core.wrappers import Bundle, Wrapper

_ATOMS = (type(None), bool, int, str, bytes, type(Ellipsis), type(NotImplemented))
_PLAIN = (torch.dtype, torch.device)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_FIELD = type(vars(Names)["looked_up"])
_TREE = optree.PyTreeSpec
_DESCRIPTORS = (property, staticmethod, classmethod, functools.cached_property)
_TOLD = ("init", "repr", "hash", "compare", "kw_only")  # of a dataclass's field


class Unknown(Exception):
    """An object has no digest; the message says which."""


class Digest:
    """The digest of a sequence of objects.

    Attributes:
        codes: the code of all functions among them, nested code included.
        kinds: the classes of installed packages among them.
        sets: the names of variables and attributes that are sets: NOTE [sets] in
            `xfunc.cache.obscure`.
    """

    def __init__(self) -> None:
        self.codes: set[types.CodeType] = set()
        self.kinds: set[type] = set()
        self.sets: set[str] = set()
        self._hash = hashlib.sha256()
        self._seen: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._objects: dict[int, int] = {}
        self._alive: list[object] = []

    def hex(self) -> str:
        """The digest of what was added."""
        return self._hash.hexdigest()

    def add_apart(self, x: object, name: str = "") -> None:
        """Add an object that shares nothing with those before; `name`: of the variable it is in."""
        self._seen.clear()
        self._named(name, x)

    def put(self, *words: object) -> None:
        """Add words, each by its text."""
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
            self._hash.update(b"%d:" % len(data))
            self._hash.update(data)

    def add(self, x: Any) -> None:
        """Add an object by its contents.

        Raises:
            Unknown: it has none that are certain.
        """
        kind = type(x)
        if kind in _ATOMS or kind in (float, complex) or kind in _PLAIN:
            self.put(kind.__name__, x if kind is bytes else repr(x))
        elif isinstance(x, torch.Tensor):
            self._tensor(x)
        elif isinstance(x, types.ModuleType):
            self.put("module", x.__name__)
        elif id(x) in self._seen:
            self.put("again", self._seen[id(x)])
        else:
            self._seen[id(x)] = len(self._seen)
            self._alive.append(x)
            try:
                self._object(kind, x)
            except RecursionError:
                raise Unknown(f"a {kind.__name__} that is nested too deep") from None

    def _object(self, kind: type, x: Any) -> None:
        if is_obscure(x):
            raise Unknown(f"{x.__name__} under another name")
        if isinstance(x, type):
            self._class(x)
        elif isinstance(x, types.FunctionType):
            self._function(x)
        elif isinstance(x, types.MethodType):
            self._all("method", (x.__func__, x.__self__))
        elif isinstance(x, (types.BuiltinFunctionType, types.MethodDescriptorType)):
            self._builtin(x)
        elif isinstance(x, functools.partial):
            self._all("partial", (x.func, x.args, x.keywords))
            self._own(x, functools.partial)
        elif isinstance(x, Wrapper):
            self._all("wrapper", (kind.__module__, kind.__qualname__, x.options))
            self._all("funs", x.funs if isinstance(x, Bundle) else (x.fun,))
        elif isinstance(x, enum.Enum):
            self._class(kind)
            self.put(x.name)
            if is_of_user(kind):
                self._state(x)
        elif isinstance(x, (types.GenericAlias, types.UnionType)):
            self._all(kind.__name__, (getattr(x, "__origin__", None), *x.__args__))
        elif kind is contextvars.ContextVar:
            self._all("variable", (x.name, views.context_value(x)))
        elif isinstance(x, logging.Logger):
            self.put("logger", x.name, x.getEffectiveLevel(), x.disabled)
        elif x is os.environ:
            self.put("environment")  # What is read of it is seen: `xfunc.cache.observed.Observer`.
        elif isinstance(x, (np.ndarray, np.generic)):
            self._array(kind, x)
        elif kind is _FIELD:
            self._all("field", x.__reduce__()[1])
        elif kind is _TREE:
            self._all("tree", x.__getstate__())
        elif kind.__module__.startswith("xfunc.sharding."):
            if kind.__reduce__ is object.__reduce__:
                self._class(kind)
                self._state(x)
            else:
                self._all(kind.__qualname__, x.__reduce__()[1])
        elif isinstance(x, (slice, range)):
            self._all(kind.__name__, (x.start, x.stop, x.step))
        elif isinstance(x, _DESCRIPTORS):
            parts = ("fget", "fset", "fdel", "__func__", "func")
            self._all(kind.__name__, [getattr(x, n) for n in parts if hasattr(x, n)])
            self._own(x, *_DESCRIPTORS)
        elif isinstance(x, (dict, list, tuple, set, frozenset)):
            self._container(kind, x)
        elif not (_is_frozen if kind.__module__.startswith("xfunc.") else is_transparent)(kind):
            raise Unknown(f"a {kind.__module__}.{kind.__qualname__}")
        else:
            self._class(kind)
            self._number(x)
            self._state(x)

    def _own(self, x: Any, *built_in: type) -> None:
        """Add what an object of a class derived from these has besides."""
        if type(x) not in built_in:
            self._class(type(x))
        self._state(x)

    def _number(self, x: object) -> None:
        """Add which of the objects it is, apart or not: a function may compare them by ``is``."""
        self.put("object", self._objects.setdefault(id(x), len(self._objects)))

    def _all(self, tag: str, xs: Iterable[object]) -> None:
        xs = list(xs)
        self.put(tag, len(xs))
        for x in xs:
            self.add(x)

    def _named(self, name: str, x: Any, of_ours: bool = False) -> None:
        """Add the content of a variable or an attribute, perhaps of an object of ours."""
        is_set = type(x) in (set, frozenset) and all(type(e) in _ATOMS for e in x)
        if not name or not is_set or has_fixed_order(x) or volatile.mark_of(x, None) is not None:
            self.add(x)
        else:
            if not of_ours:
                self.sets.add(name)
            self.put("set", *sorted(map(repr, x)))

    def _container(self, kind: type, x: Any) -> None:
        if volatile.mark_of(x, None) is not None:
            raise Unknown("something that the function changes")
        if kind not in (dict, list, tuple, set, frozenset):
            self._class(kind)
            self._state(x)
        if not isinstance(x, (tuple, frozenset)):
            self._number(x)
        if isinstance(x, dict):
            self._all("dict", (part for item in x.items() for part in item))
            self.add(getattr(x, "default_factory", None))
        elif isinstance(x, (set, frozenset)):
            if not has_fixed_order(x):
                raise Unknown(f"a {kind.__name__} whose order is another in each process")
            self._all("set", x)
        else:
            self._all("sequence", (kind is tuple, *x))

    def _state(self, x: Any) -> None:
        named = dict(getattr(x, "__dict__", None) or {})
        named |= {n: getattr(x, n) for n in views.all_slots(type(x)) if hasattr(x, n)}
        if any(volatile.mark_of(x, n) is not None for n in named):
            raise Unknown("something that the function changes")
        self.put("state", len(named))
        for name, value in named.items():
            self.put(name)
            self._named(name, value, type(x).__module__.startswith("xfunc."))

    def _array(self, kind: type, x: Any) -> None:
        if x.dtype.hasobject or kind.__module__ != "numpy":
            raise Unknown(f"an array of dtype {x.dtype}")
        strides = getattr(x, "strides", ())
        self.put("array", kind.__name__, repr(x.dtype), x.shape, strides, x.tobytes())

    def _tensor(self, x: torch.Tensor) -> None:
        """See `xfunc.cache.valuation.Walk.tensor`: it becomes an input of the program."""
        kind = type(x)
        known = kind in _TENSORS or kind.__module__ == "xfunc.backends.pjrt.array"
        if not known or getattr(x, "__dict__", None):
            raise Unknown(f"a {kind.__name__} with attributes")
        slot = self._slots.setdefault(id(x), len(self._slots))
        self._alive.append(x)
        more = (x.stride() if x.is_cpu else None, x.requires_grad, x.is_leaf)
        self.put("tensor", slot, kind.__name__, tuple(x.shape), x.dtype, *more)

    def _function(self, x: types.FunctionType) -> None:
        if not is_of_program(x.__code__) and _by_name(x.__module__, x.__qualname__) is x:
            self.put("function", x.__module__, x.__qualname__)
            return
        self._note(x.__code__)
        self.put("function", x.__globals__.get("__name__"), code_digest(x.__code__))
        self.put(x.__module__, x.__qualname__, x.__name__, repr(x.__doc__))
        for name, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
            if volatile.mark_of(cell, None) is not None:
                raise Unknown("a variable that the function changes")
            held = views.content(cell)
            self.put("cell", held is views.MISSING)
            if held is not views.MISSING:
                self._named(name, held)
        self._all("defaults", (x.__defaults__, x.__kwdefaults__))
        self._state(x)

    def _note(self, code: types.CodeType) -> None:
        self.codes.add(code)
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                self._note(const)

    def _builtin(self, x: Any) -> None:
        owner = getattr(x, "__self__", None) if not hasattr(x, "__objclass__") else x.__objclass__
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            where = owner.__module__ if isinstance(owner, type) else x.__module__
            self.put("builtin", where, getattr(owner, "__qualname__", ""), x.__name__)
        else:
            self._all("bound", (x.__name__, owner))

    def _class(self, cls: type) -> None:
        self.put("class", cls.__module__, cls.__qualname__, cls.__name__)
        if not is_of_user(cls):
            in_c = not classes.can_change(cls)
            if in_c and not is_known(cls.__module__):
                raise Unknown(f"the compiled class {cls.__module__}.{cls.__qualname__}")
            if in_c or _by_name(cls.__module__, cls.__qualname__) is cls:
                self.kinds.add(cls)
                return
            if cls.__module__ != "jaxtyping":
                raise Unknown(f"the class {cls.__qualname__}")
            self._all("array type", (getattr(cls, n) for n in ("dtype", "array_type", "dim_str")))
            return
        if type(cls) is not type:
            self.add(type(cls))
        self._all("bases", cls.__bases__)
        self._all("registered", classes.registered(cls) if classes.is_abstract(cls) else ())
        own = {n: v for n, v in vars(cls).items() if not classes.is_derived(n)}
        own["__doc__"] = cls.__doc__
        for name, field in vars(cls).get("__dataclass_fields__", {}).items():
            told = {n: getattr(field, n) for n in _TOLD}
            own[f"field {name}"] = (told, dict(field.metadata))
        self.put(len(own))
        for name, value in own.items():
            self.put(name)
            if not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                self._named(name, value)


def _by_name(module: str | None, qualname: str) -> object:
    """What can be reached by these names, without wrappers; None: nothing."""
    found: Any = sys.modules.get(module or "")
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


@functools.lru_cache(16384)
def code_digest(code: types.CodeType) -> str:
    """The digest of a code object, with the lines of its instructions."""
    found = Digest()
    found.put(
        *(code.co_filename, code.co_qualname, code.co_firstlineno, code.co_flags),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        *(code.co_code, code.co_linetable, code.co_exceptiontable),
    )
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        found.put(len(names), *names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found.put("code", code_digest(const))
        elif isinstance(const, frozenset):  # as in ``x in {"a", "b"}``
            found.put("set", *sorted(map(repr, const)))
        else:
            found.add_apart(const)
    return found.hex()


def _is_frozen(kind: type) -> bool:
    """Whether instances have fields that never change, and nothing else."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen


def is_library(module: types.ModuleType) -> bool:
    """Whether a module belongs to an installed package, not to the user's program."""
    return not module_is_of_user(module, module.__name__)
