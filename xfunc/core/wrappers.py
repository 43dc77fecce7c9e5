"""Callables that wrap another function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NoReturn

from xfunc.core.locations import function_name
from xfunc.tree import Function


class Wrapper:
    """Base of callables that compare by their kind, their options and the function inside.

    Attributes:
        fun: the function inside.
        options: everything else that determines the behaviour; hashable.
    """

    fun: Function
    options: Hashable


class Part(Wrapper):
    """A function as a part of something else: the body of a loop, a branch.

    Its programs are kept apart from those of the function itself.

    Attributes:
        called: what the user called, if that is built on another transform; for messages.
    """

    called: str | None = None

    def __init__(self, fun: Callable[..., object], role: Hashable):
        self.fun, self.options = fun, role
        self.__wrapped__ = fun  # for its signature
        self.__qualname__ = function_name(fun)


def called(fun: object, transform: str) -> str:
    """What the user called to have a transform of a function: see `Part`."""
    return (fun.called if isinstance(fun, Part) else None) or transform


class Bundle(Wrapper):
    """Several functions that count as one: their values together. The first gives the name."""

    def __init__(self, funs: Iterable[Callable[..., object]]):
        self.funs = tuple(funs)
        self.fun, self.options = self.funs[0], len(self.funs)
        self.__qualname__ = function_name(self.fun)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("several functions at once cannot be called")
