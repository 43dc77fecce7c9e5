"""Key paths, as the user knows them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import overload

import optree


class Labels(Sequence[str]):
    """Names of values for messages, made when the first is read.

    Args:
        make: makes all of them.
    """

    def __init__(self, make: Callable[[], Sequence[str]]):
        self._make = functools.cache(make)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[str]: ...
    def __getitem__(self, i: int | slice) -> str | Sequence[str]:
        return self._make()[i]

    def __len__(self) -> int:
        return len(self._make())


def path_of(accessor: optree.PyTreeAccessor, names: Sequence[str]) -> str:
    """A key path in ``(args, kwargs)``, as the user knows it."""
    if len(accessor) < 2:
        return "the arguments"
    which, first = accessor[0].entry, accessor[1].entry
    rest = accessor[2:].codify("")
    if which == 1:
        return f"{first}{rest}"
    return f"{names[first]}{rest}" if first < len(names) else f"argument {first}{rest}"
