"""Finding the user's own line among library frames."""

from __future__ import annotations

import bisect
import functools
import inspect
import linecache
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import NamedTuple

import numpy
import optree
import torch

_HERE = os.path.dirname(os.path.dirname(__file__))
_SITE = os.path.dirname(os.path.dirname(torch.__file__))
_LIBRARIES = tuple(
    path + os.sep
    for path in (
        _HERE,
        # The location of these two when the package is used from its source tree.
        os.path.join(os.path.dirname(_HERE), "transforms"),
        os.path.join(os.path.dirname(_HERE), "sharding"),
        os.path.dirname(torch.__file__),
        *(os.path.join(_SITE, name) for name in ("torch_xla", "jax", "jaxlib")),
        os.path.dirname(optree.__file__),
        os.path.dirname(numpy.__file__),
    )
)
_TORCH = os.path.dirname(torch.__file__) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep
# Keyed by identity: hashing code reads all of it, and fails for some code made by dynamo.
_lines: dict[int, tuple[types.CodeType, list[int], list[int]]] = {}


class Location(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line} in {self.function}" + (f": {text}" if text else "")


def in_user_code(code: types.CodeType) -> bool:
    """Whether a code object belongs to the user rather than to a library under it."""
    return in_user_file(code.co_filename)


def forget() -> None:
    """Forget the code objects that were asked about."""
    _lines.clear()


@functools.lru_cache(4096)
def in_user_file(file: str) -> bool:
    """Whether a source file is the user's rather than a library's under it."""
    # Without a virtual environment, third-party packages are below the standard library.
    stdlib = file.startswith((_STDLIB, "<frozen")) and "site-packages" not in file
    return not (stdlib or file.startswith(_LIBRARIES))


def line_of(code: types.CodeType, instruction: int) -> int:
    """The line of an instruction of a code object, given by its offset."""
    if (known := _lines.get(id(code))) is None:
        first = code.co_firstlineno  # of instructions that have no line
        found = [(start, line or first) for start, _, line in code.co_lines()]
        known = code, [start for start, _ in found], [line for _, line in found]
        _lines[id(code)] = known
    _, starts, lines = known
    return lines[bisect.bisect(starts, instruction) - 1]


def user_location(frame: types.FrameType | None = None) -> Location | None:
    """The user's innermost frame at or above `frame` (by default, the caller's)."""
    frame = frame or sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if in_user_code(frame.f_code):
            return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def called_by(package: str) -> bool:
    """Whether a function of a package or module is running: nearer than the user's innermost."""
    frame: types.FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if f"{module}.".startswith(f"{package}."):
            return True
        if is_of_program(frame.f_code):
            return False
        frame = frame.f_back
    return False


def in_autograd_function(frame: types.FrameType | None) -> bool:
    """Whether a rule of a user's ``torch.autograd.Function`` is running."""
    rules = set(map(id, _rules(torch.autograd.Function)))
    while frame is not None:
        if id(frame.f_code) in rules and in_user_code(frame.f_code):
            return True
        frame = frame.f_back
    return False


def _rules(cls: type) -> Iterator[types.CodeType]:
    """The code of the rules in the classes derived from a class."""
    for derived in cls.__subclasses__():
        for name in ("forward", "setup_context", "backward", "vjp", "jvp", "vmap"):
            code = getattr(inspect.unwrap(getattr(derived, name)), "__code__", None)
            if code is not None:
                yield code
        yield from _rules(derived)


def raised_at(error: BaseException) -> Location | None:
    """The user's innermost line in the traceback of an exception."""
    result, entry = None, error.__traceback__
    while entry is not None:
        if in_user_code(entry.tb_frame.f_code):
            code = entry.tb_frame.f_code
            result = Location(code.co_filename, entry.tb_lineno, code.co_name)
        entry = entry.tb_next
    return result


def function_name(fun: object) -> str:
    """The name of a callable in messages."""
    owner = getattr(fun, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        # From torch 2.14 on its `apply` is written in C, and says nothing of the class.
        return f"{owner.__qualname__}.{getattr(fun, '__name__', '')}"
    if isinstance(fun, types.BuiltinFunctionType):
        return fun.__name__
    name = getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None)
    inside = getattr(fun, "func", None)
    if name is None and inside is not None:
        return f"partial({function_name(inside)})"
    return name or type(fun).__name__


def described(fun: object) -> str:
    """The name of a callable in messages; the name of a lambda includes its location."""
    name, place = function_name(fun), place_of(fun)
    return f"<lambda{place}>" if place and name.endswith("<lambda>") else name


def place_of(fun: object) -> str:
    """Where a function is defined, as `` at file.py:12``; empty for those not written in Python."""
    code = getattr(_inside(fun), "__code__", None)
    return f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""


def _inside(fun: object) -> object:
    """The Python function in transforms of it."""
    while (inner := getattr(fun, "__wrapped__", None)) is not None:
        fun = inner
    return fun


@functools.cache
def _is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


def is_of_program(code: types.CodeType) -> bool:
    """Whether a code object belongs to the user's program, not to an installed package."""
    return in_user_code(code) and not _is_installed(code.co_filename)


def is_of_user(cls: type) -> bool:
    """Whether a class belongs to the user's program, not to an installed package."""
    return name_is_of_user(cls.__module__)


def name_is_of_user(module: str) -> bool:
    """Whether the module with this name belongs to the user's program."""
    return module_is_of_user(sys.modules.get(module), module)


def module_is_of_user(module: object, name: str) -> bool:
    """Whether a module (None if it was not imported normally) belongs to the user's program."""
    if module is None:
        return name != "builtins"
    file = getattr(module, "__file__", None)
    if file is None:
        return name not in sys.builtin_module_names
    return in_user_file(file) and not _is_installed(file)
