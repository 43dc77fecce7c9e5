"""The key of a program in the cache."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from xfunc import tree
from xfunc.core.avals import AvalKey

Static: TypeAlias = tuple[tuple[int | str, Hashable, object], ...]
"""Arguments that were taken out: position or name, kind of the value and value of each."""


class Key(NamedTuple):
    """The key of a program, next to the `code_key` of its function.

    Attributes:
        values: of the function's captures.
        tree: structure of the arguments.
        avals: of the array arguments.
        static: arguments that were taken out: ``(where, type, value)`` of each.
        modes: global settings.
        extra_deps: further dependencies by label; leaves that are not arrays, by position.
    """

    values: Hashable
    tree: tree.Structure
    avals: tuple[AvalKey, ...]
    static: Static | None
    modes: Hashable
    extra_deps: tuple[tuple[Hashable, Hashable], ...] = ()
