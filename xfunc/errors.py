"""The errors that xfunc raises.

Each one also derives from the builtin that a Python programmer would expect, so that ``except
TypeError`` keeps working. Every message has the same shape: the problem and its value, the place in
the user's own file, and the fix.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType
from typing import NoReturn

import torch

from xfunc.core.locations import Location, user_location

# The classes are for users to catch; the functions that raise them are internal.
__all__ = [
    "CheckpointWriteError",
    "CompileError",
    "ConcretizationError",
    "DamagedCheckpointError",
    "ExecutionError",
    "LeakError",
    "OutOfMemoryError",
    "PurityError",
    "ShapeError",
    "ShardingError",
    "TreeMismatchError",
    "UnsupportedOpError",
    "XfuncError",
]


class XfuncError(Exception):
    """Base class of the errors below."""


class ConcretizationError(XfuncError, TypeError):
    """A traced value was read: it has a shape and a dtype, but no data until the program runs."""


class PurityError(XfuncError, ValueError):
    """A traced function did something that a pure function must not do."""


class LeakError(XfuncError, RuntimeError):
    """A traced value outlived its trace."""


class TreeMismatchError(XfuncError, TypeError):
    """Two trees that must agree differ; the message lists every path that does."""


class ShardingError(XfuncError, ValueError):
    """A sharding does not fit its mesh or its array."""


class ShapeError(XfuncError, ValueError):
    """A size contradicts `dynamic_shapes`."""


class UnsupportedOpError(XfuncError, NotImplementedError):
    """An operation that cannot be traced."""


class CompileError(XfuncError, RuntimeError):
    """The compiler refused a program."""


class OutOfMemoryError(CompileError):
    """A program does not fit on the device.

    Attributes:
        required_bytes: of the program, or None if the compiler did not report it.
        limit_bytes: of the device, or None if the compiler did not report it.
    """

    def __init__(
        self, message: str, required_bytes: int | None = None, limit_bytes: int | None = None
    ):
        super().__init__(message)
        self.required_bytes = required_bytes
        self.limit_bytes = limit_bytes


class ExecutionError(XfuncError, RuntimeError):
    """A program failed while it ran: another process ended, for example."""


class DamagedCheckpointError(XfuncError, ValueError):
    """A file of a checkpoint is missing, cut off or changed.

    Attributes:
        file: the file, or the folder if the damage is not in a single file.
    """

    def __init__(self, message: str, file: Path | None = None):
        super().__init__(message)
        self.file = file


class CheckpointWriteError(XfuncError, OSError):
    """A checkpoint could not be written: the disk is full, for example.

    Attributes:
        errno: the system's error number, such as `errno.ENOSPC`.
    """

    def __init__(self, message: str, number: int | None = None):
        super().__init__(message)
        self.errno = number


def short_repr(value: object) -> str:
    """A value of the user's in a message: its repr, on one line and not too long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # Its class defines one that fails, on half-made objects for example.
        text = object.__repr__(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def kind_of(value: object) -> str:
    """The kind of a user's value, in a message: ``an int``."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


_ARRAYS = "pass tensors, NumPy arrays and Python numbers."


_IN_TREE = (
    "pass tensors, NumPy arrays and Python numbers. A function may close over anything else "
    "(xf.tree.partition(t, torch.is_tensor) takes a tree apart), or a class has it as a static "
    "field (xf.tree.register_dataclass with meta_fields)."
)


def hint_for(value: object, label: str = "", static: str = "") -> str:
    """A hint: the value to pass in place of an argument that is no array.

    Args:
        value: the argument, or a leaf of it.
        label: the argument's name and the leaf's path, as in ``config['mode']``.
        static: the option that makes the argument static, if there is one.
    """
    if isinstance(value, torch.nn.Module):
        return (
            "pass its parameters: apply, params, buffers = xf.functional(module), and "
            "apply(params, buffers, x) computes (module(x), buffers)."
        )
    if isinstance(value, torch.optim.Optimizer):
        return "pass its state as a tree of tensors, and return the new one: docs/optimizers.md."
    if hasattr(type(value), "__dlpack__"):
        return "make a tensor of it, which shares its memory: torch.from_dlpack(array)."
    if isinstance(value, Iterator):
        return "pass a list: an iterator can be read only once."
    if {".", "["} & set(label):
        whole = f" An argument without tensors can be static ({static})." if static else ""
        return _IN_TREE + whole
    if static:
        return (
            "pass tensors, NumPy arrays and Python numbers; register your own class with "
            f"xf.tree.register; make anything else static ({static}); of an object's method, "
            "write jit(obj.method)."
        )
    return _ARRAYS


def format_error(
    problem: str,
    hint: str,
    *,
    function: str | None = None,
    at: Location | EllipsisType | None = ...,
) -> str:
    """The text of an error: problem, function, the user's line, hint.

    The line is the caller's, unless `at` gives another one, or None for an error without a line.
    """
    lines = [problem if function is None else f"{problem} (while tracing {function})"]
    if isinstance(at, EllipsisType):
        at = user_location()
    if at is not None:
        lines.append(f"  at {at}")
    lines.append(f"Hint: {hint}")
    return "\n".join(lines)


def fail(
    kind: type[Exception],
    problem: str,
    hint: str,
    *,
    function: str | None = None,
    at: Location | EllipsisType | None = ...,
) -> NoReturn:
    """Raise an error with the text of `format_error`."""
    raise kind(format_error(problem, hint, function=function, at=at))
