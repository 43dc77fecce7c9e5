"""How the cache treats places that a function changed while it was being traced.

NOTE [volatile places]: a function that counts its own runs, in a variable, a list or an attribute,
would never hit. So a place that a function has changed no longer counts by value.

NOTE [flags]: a place that held True and now holds False, or vice versa, does count, since a
function reads such a place to see whether it runs for the first time. The program traced meanwhile
is valid for that one call only: the next call finds the other value, and is traced.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

K = TypeVar("K")


class Changed(enum.Flag):
    """The kinds of changed places."""

    NOTHING = 0
    VOLATILE = enum.auto()
    FLAGS = enum.auto()

    @classmethod
    def any(cls, kinds: Iterable[Changed]) -> Changed:
        """All these kinds together."""
        result = cls.NOTHING
        for kind in kinds:
            result |= kind
        return result


def between(
    before: Mapping[K, Hashable], now: Mapping[K, Hashable], keys: Iterable[K]
) -> tuple[set[K], Changed]:
    """The places among these that are volatile from now on, and which kinds were changed."""
    changed = {k for k in keys if before.get(k) != now.get(k)}
    flags = {k for k in changed if _are_flags(before.get(k), now.get(k))}
    volatile = changed - flags
    kinds = Changed.VOLATILE if volatile else Changed.NOTHING
    return volatile, kinds | (Changed.FLAGS if flags else Changed.NOTHING)


def _are_flags(before: Hashable, now: Hashable) -> bool:
    """Whether two values differ only in True and False."""
    if not isinstance(before, tuple) or not isinstance(now, tuple) or len(before) != len(now):
        return False
    if before[:1] == now[:1] == (bool,):
        return True
    return all(a == b or _are_flags(a, b) for a, b in zip(before, now, strict=True))
