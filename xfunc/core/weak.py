"""Data attached to objects for as long as they live."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakTable(Generic[T]):
    """A value for each of several objects, which it does not keep alive.

    By identity: a WeakKeyDictionary asks whether tensors are equal, which reads them.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[object], T]] = {}

    def __setitem__(self, key: object, value: T) -> None:
        forget, number = self._entries.pop, id(key)
        self._entries[number] = (weakref.ref(key, lambda _: forget(number, None)), value)

    def get(self, key: object) -> T | None:
        """The value for an object, or None."""
        entry = self._entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def __contains__(self, key: object) -> bool:
        entry = self._entries.get(id(key))
        return entry is not None and entry[0]() is key

    def __len__(self) -> int:
        return len(self._entries)
