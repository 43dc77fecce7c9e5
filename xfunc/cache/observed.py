"""What runs while a function is traced, by which a later process can tell that it would run too.

NOTE [what ran]: the digest of a function (`xfunc.cache.digest`) covers the user's program, as far
as names in its code lead. What they do not lead to is seen here, by a hook that Python calls for
each function that starts. Code of the program that ran without being part of the digest, or a call
that reads a file, the clock or a generator of random numbers, is a reason not to keep the program.
The code of installed packages that ran is kept as *links*: what each name in it, and each attribute
of their modules and classes that any code mentions, stood for. Another process has to find the same
behind each of them, and the same source files.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import sys
import types
from collections.abc import Collection, Iterable
from typing import Any

import torch

from xfunc.cache import views
from xfunc.cache.digest import Digest, Unknown, code_digest, is_library
from xfunc.cache.draws import Draws
from xfunc.cache.impure import calls_impure, is_impure
from xfunc.cache.names import names_in
from xfunc.cache.obscure import obscured_by
from xfunc.core.locations import is_of_program, is_of_xfunc

Links = dict[str, str]
"""By ``module:name``, what it stands for."""

_READ_ALL = frozenset(
    getattr(os._Environ, n).__code__ for n in ("__iter__", "__len__", "__repr__", "copy")
)
_VARYING = frozenset(["warnings:filters"])  # Whatever is imported adds to these.
# The source of `os` and of the methods of mappings.
_BETWEEN = ("<frozen os>", "<frozen _collections_abc>", os.__file__)


class Observer:
    """Sees what runs in a block in this thread.

    Attributes:
        why: why what runs is not the same each time; "" if it is.
        codes: the code that ran.
        read: the environment variables that were read.

    Args:
        draws: what sees it too.
    """

    def __init__(self, draws: Draws | None = None) -> None:
        self.why, self._draws = "", draws
        self.read: set[str] = set()
        self._imports = 0
        self.codes: dict[int, tuple[types.CodeType, dict[str, object]]] = {}

    def __enter__(self) -> Observer:
        if sys.getprofile() is not None:
            self.why = "a profiler is running"
        else:
            self._numbers = _random_state()
            sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.getprofile() == self._see:
            sys.setprofile(None)
            if not self.why and self._numbers != _random_state():
                self.why = "random numbers were drawn"

    def _see(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if self._draws is not None:
            self._draws.see(frame, event, arg)
        if frame.f_code.co_name == "_find_and_load" and event in ("call", "return"):
            self._imports += 1 if event == "call" else -1
        elif self._imports:  # What a module does when it is loaded, it does in each process.
            return
        elif event == "call":
            self.codes.setdefault(id(frame.f_code), (frame.f_code, frame.f_globals))
            if frame.f_globals is vars(os):
                self._see_environment(frame)
            if not self.why and is_impure(frame):
                self.why = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name} was called"
        elif event == "c_call" and not self.why and calls_impure(frame, arg):
            self.why = f"{getattr(arg, '__qualname__', arg)} was called"

    def _see_environment(self, frame: types.FrameType) -> None:
        """Note what is read from `os.environ` by anyone but xfunc."""
        by = frame.f_back
        while by is not None and by.f_code.co_filename.startswith(_BETWEEN):
            by = by.f_back
        if by is None or is_of_xfunc(by.f_code.co_filename):
            return
        if frame.f_code is os._Environ.__getitem__.__code__:
            name = frame.f_locals["key"]
            self.read.add(name if isinstance(name, str) else os.fsdecode(name))
        elif frame.f_code in _READ_ALL and not self.why:
            self.why = "it reads all environment variables"

    @property
    def of_program(self) -> list[types.CodeType]:
        """The code of the user's program that ran."""
        return [code for code, _ in self._of_program()]

    def _of_program(self) -> list[tuple[types.CodeType, dict[str, object]]]:
        found = self.codes.values()
        return [(c, n) for c, n in found if is_of_program(c) and not _is_made(c, n)]

    def imports_own(self) -> bool:
        """Whether a function of the program imports a module of the program."""
        return not all(
            _is_installed(i.resolved(names))
            for code, names in self._of_program()
            for i in names_in(code).imports
        )

    def obscured_by(self, sets: Collection[str]) -> str:
        """What makes the program's code that ran obscure; "" if nothing does.

        `sets`: the names of those without an order, see NOTE [sets] in `xfunc.cache.obscure`.
        """
        ran = [(code, names) for code, names in self.codes.values() if is_of_program(code)]
        found = (obscured_by(code, names, sets) for code, names in ran)
        return next(filter(None, found), "")

    def files(self) -> dict[str, str]:
        """The digests of the source files of installed packages whose code ran."""
        names = {code.co_filename for code, _ in self.codes.values() if not is_of_program(code)}
        return digests(n for n in names if not is_of_xfunc(n) and not n.startswith("<"))

    def links(self, reached: Iterable[types.ModuleType], kinds: Iterable[type]) -> Links:
        """What names and attributes stand for, in the code that ran and in given modules.

        `kinds`: classes of installed packages, of which the program may read attributes.
        """
        found: Links = {}
        roots: dict[int, Any] = {id(torch.Tensor): torch.Tensor}
        roots |= {id(m): m for m in reached if is_library(m)}
        mentioned: dict[str, None] = {}
        for code, namespace in self.codes.values():
            if is_of_xfunc(code.co_filename):
                continue
            names = names_in(code)
            mentioned.update(names.mentioned)
            module = _library_of(namespace)
            if module is None:
                continue
            for name in names.looked_up:
                if name in namespace:
                    _note(found, roots, module, name, namespace[name])
            if _resolved(module, code.co_qualname) is not views.MISSING:
                _note(found, roots, module, code.co_qualname, None)
        seen: set[int] = set()
        while todo := [r for key, r in roots.items() if key not in seen]:
            seen.update(map(id, todo))
            for root in todo:
                for name in mentioned:
                    if (value := _attribute(root, name)) is not views.MISSING:
                        _note(found, roots, root, name, value)
        by_program = {n for code in self.of_program for n in names_in(code).mentioned}
        for kind, name in itertools.product(kinds, by_program):
            if (value := _attribute(kind, name)) is not views.MISSING:
                _note(found, {}, kind, name, value)
        return found


def _is_installed(module: str) -> bool:
    found = sys.modules.get(module)
    return found is not None and is_library(found)


def _is_made(code: types.CodeType, namespace: dict[str, object]) -> bool:
    """Whether code comes from no file: methods of dataclasses and named tuples of libraries."""
    if not code.co_filename.startswith("<"):
        return False
    name = str(namespace.get("__name__"))
    return _library_of(namespace) is not None or name.startswith("namedtuple_")


def _library_of(namespace: dict[str, object]) -> types.ModuleType | None:
    """The module of an installed package whose namespace this is."""
    found = sys.modules.get(str(namespace.get("__name__")))
    if found is None or vars(found) is not namespace or not is_library(found):
        return None
    return found


def same(links: Links) -> str | None:
    """The first link that stands for something else in this process, or None."""
    for link, what in links.items():
        module, _, name = link.partition(":")
        part = f"{module}.{name}"  # It may be a module that nothing has imported yet.
        if module not in sys.modules or (what == f"module {part}" and part not in sys.modules):
            continue
        if _behind(sys.modules[module], name) != what:
            return link
    return None


def digests(files: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of each of these files; "" if there is none."""
    return {name: _digest_of(name) for name in sorted(files)}


@functools.cache
def _digest_of(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return ""


def _note(found: Links, roots: dict[int, Any], root: Any, name: str, value: Any) -> None:
    module, prefix = (
        (root.__module__, f"{root.__qualname__}.")
        if isinstance(root, type)
        else (root.__name__, "")
    )
    link = f"{module}:{prefix}{name}"
    what = _behind(sys.modules.get(module), f"{prefix}{name}")
    if what and link not in _VARYING:
        found[link] = what
    # What `sys` holds is the state of the interpreter.
    is_module = isinstance(value, types.ModuleType) and is_library(value) and value is not sys
    if is_module or (isinstance(value, type) and value.__flags__ & 1 << 9):
        roots[id(value)] = value


def _attribute(root: Any, name: str) -> Any:
    """The attribute of a module, or of a class or its bases, as it is stored."""
    if not isinstance(root, type):
        return vars(root).get(name, views.MISSING)
    return next((vars(c)[name] for c in root.__mro__ if name in vars(c)), views.MISSING)


def _resolved(module: Any, qualname: str) -> Any:
    found = module
    for name in qualname.split("."):
        is_place = isinstance(found, (type, types.ModuleType)) and name != "<locals>"
        found = _attribute(found, name) if is_place else views.MISSING
    return found


def _behind(module: Any, qualname: str) -> str:
    """What a name stands for; "" if that varies between processes."""
    found = _resolved(module, qualname)
    private = qualname.rpartition(".")[2].startswith("_")
    if found is None:
        return "" if private else "None"
    if type(found) in (dict, list, tuple, set, frozenset) and not private:  # else often a cache
        digest = Digest()
        with contextlib.suppress(Unknown):
            digest.add(found)
            return f"{type(found).__name__} {digest.hex()}"
    return _described(found)


def _described(x: Any) -> str:
    """What something is, in words that are the same in each process; "" if that varies."""
    if isinstance(x, types.FunctionType):
        inside = [views.content(cell) for cell in x.__closure__ or ()]
        codes = [x.__code__, *(f.__code__ for f in inside if isinstance(f, types.FunctionType))]
        names = f"function {x.__module__}.{x.__qualname__}"
        return " ".join([names, *map(code_digest, codes), _defaults(x)])
    if isinstance(x, (staticmethod, classmethod)):
        return f"{type(x).__name__} {_described(x.__func__)}"
    if isinstance(x, property):
        return f"property {_described(x.fget)}"
    if isinstance(x, types.ModuleType):
        return f"module {x.__name__}"
    if isinstance(x, type):
        return f"class {x.__module__}.{x.__qualname__}"
    if isinstance(x, (types.BuiltinFunctionType, types.MethodDescriptorType)):
        owner = getattr(x, "__self__", None) or getattr(x, "__objclass__", None)
        return f"builtin {getattr(owner, '__name__', '')} {x.__name__}"
    if type(x) in (bool, int, float, str):
        return f"{type(x).__name__} {x!r}"
    if isinstance(x, functools.partial):
        return f"partial {_described(x.func)}"
    return f"a {type(x).__module__}.{type(x).__qualname__} {getattr(x, '__name__', '')}"


def _defaults(x: types.FunctionType) -> str:
    found = Digest()
    with contextlib.suppress(Unknown):
        found.add((x.__defaults__, x.__kwdefaults__))
        return found.hex()
    return ""


def _random_state() -> tuple[object, ...]:
    import random

    import numpy as np

    kind, *parts = np.random.get_state(legacy=True)
    torch_state = torch.random.get_rng_state().numpy().tobytes()
    return (
        random.getstate(),
        kind,
        *(getattr(p, "tobytes", lambda p=p: p)() for p in parts),
        torch_state,
    )
