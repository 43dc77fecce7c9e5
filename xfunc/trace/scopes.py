"""The origin of each instruction: the user's scopes, file and line in the HLO metadata.

NOTE [how a line gets into HLO]: once a torch function has returned, the operations that it recorded
are stamped with a number (``17|``), one cheap call; `xfunc.hlo.write` puts it before the name of
the operation in the metadata; and `resolve` replaces the number when a module is shown, compiled or
exported. Operations of a backward pass have the line that asked for the gradient; inside named
scopes, hooks on the nodes of the autograd graph stamp them instead.
"""

from __future__ import annotations

import functools
import itertools
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch.autograd.graph import Node

from xfunc.cache.programs import clear_with_caches
from xfunc.core.locations import in_user_code, line_of
from xfunc.errors import fail
from xfunc.tracer import placeholders

T = TypeVar("T")


class _Thread(threading.local):
    scope = ""


_thread = _Thread()


class named_scope:
    """Add `name` to the names of the operations traced in a block or in a decorated function.

    Scopes nest: ``mlp/up/aten__mm``. The names go into the metadata of the HLO (``op_name``), which
    profilers show together with the user's file and line. Operations of the backward pass carry
    scope and line of the forward operation, as ``transpose(mlp/up)/aten__mm``; outside any scope
    they carry the line that asked for the gradient.

    Raises:
        TypeError: the name is not a string, or is empty.

    Source: ``jax.named_scope``.
    """

    def __init__(self, name: str):
        if not isinstance(name, str) or not name:
            fail(
                TypeError,
                f"named_scope was given {name!r}",
                "name the scope by a string that is not empty.",
            )
        self._name = name
        self._before: list[str] = []

    def __enter__(self) -> None:
        self._before.append(enter(f"{current()}{self._name}/"))

    def __exit__(self, *_: object) -> None:
        enter(self._before.pop())

    def __call__(self, fun: Callable[..., T]) -> Callable[..., T]:
        name = self._name

        @functools.wraps(fun)
        def scoped(*args: object, **kwargs: object) -> T:
            with named_scope(name):
                return fun(*args, **kwargs)

        return scoped


def current() -> str:
    """The active scopes, each followed by a slash."""
    return _thread.scope


def enter(scope: str) -> str:
    """Activate this scope; returns the previous one."""
    before = current()
    _thread.scope = scope
    return before


class Origin(NamedTuple):
    """The origin for a stamp."""

    code: types.CodeType
    instruction: int
    scope: str


_numbers = itertools.count()
_origins: dict[int, Origin] = {}  # by number, which is the stamp
# Code by identity (a code object's hash runs over all of it), and by instruction (a frame finds its
# line by counting). None: not the user's code.
_stamps: dict[int, dict[tuple[int, str], str] | None] = {}
_kept: list[types.CodeType] = []  # keeps their identities from being reused
_UNKNOWN: dict[tuple[int, str], str] = {}


class Stamps:
    """Stamps the values made in one trace.

    Attributes:
        watching: whether there are hooks that stamp the operations of backward passes.
    """

    def __init__(self) -> None:
        self.watching = False

    def stamp(self, tensor: Any, frame: types.FrameType | None) -> None:
        """Record that `tensor` was made by the user's code at or above `frame`."""
        while frame is not None:
            code = frame.f_code
            known = _stamps.get(id(code), _UNKNOWN)
            if known is _UNKNOWN:
                known = _learn(code)
            if known is not None:
                break
            frame = frame.f_back
        else:
            return
        scope = _thread.scope
        key = (frame.f_lasti, scope)
        prefix = known.get(key)
        if prefix is None:
            number = next(_numbers)
            _origins[number] = Origin(code, *key)
            prefix = known[key] = f"{number}|"
        placeholders.stamp(prefix)
        if scope and tensor.requires_grad and tensor.grad_fn is not None:
            self._watch(tensor.grad_fn, f"-{prefix}")

    def _watch(self, node: Node, prefix: str) -> None:
        """Stamp the operations in the backward pass of an operation."""

        def stamp(*_: object) -> None:
            placeholders.stamp(prefix)

        node.register_hook(stamp)
        self.watching = True


def _learn(code: types.CodeType) -> dict[tuple[int, str], str] | None:
    result: dict[tuple[int, str], str] | None = {} if in_user_code(code) else None
    _stamps[id(code)] = result
    _kept.append(code)
    return result


def forget() -> None:
    """Forget the traced code; programs made from it no longer know scopes and lines."""
    _stamps.clear()
    _origins.clear()
    _kept.clear()


clear_with_caches(forget)


Meaning = tuple[str, str, int]
"""The name of an operation, with the scopes around it; its file and line."""


def meaning(name: str) -> Meaning | None:
    """The origin for a stamped name; None if it is not stamped."""
    stamp, bar, operation = name.partition("|")
    if not bar or not stamp.removeprefix("-").isdecimal():  # It may be a scope's own bar.
        return None
    origin = _origins.get(abs(int(stamp)))
    if origin is None:  # forgotten since the program was traced
        return operation, "", 0
    code, instruction, scope = origin
    prefix = f"transpose({scope.rstrip('/')})/" if stamp.startswith("-") else scope
    return prefix + operation, code.co_filename, line_of(code, instruction)
