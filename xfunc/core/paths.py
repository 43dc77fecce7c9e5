"""Key paths, as the user knows them."""

from __future__ import annotations

from collections.abc import Sequence

import optree


def path_of(accessor: optree.PyTreeAccessor, names: Sequence[str]) -> str:
    """A key path in ``(args, kwargs)``, as the user knows it."""
    if len(accessor) < 2:
        return "the arguments"
    which, first = accessor[0].entry, accessor[1].entry
    rest = accessor[2:].codify("")
    if which == 1:
        return f"{first}{rest}"
    return f"{names[first]}{rest}" if first < len(names) else f"argument {first}{rest}"
