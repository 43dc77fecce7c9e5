"""The places that functions have changed, which no longer count by value.

See NOTE [volatile places] in `xfunc.cache.changes`. A place is an object and the name of one of its
attributes, or None for its content. From then on, a `Mutated` stands for its value.

NOTE [places that die]: neither a mark nor the key that contains it keeps the object alive. But
marks are found by the identity of objects, which Python reuses after their death, so a place is
forgotten together with its object. Lists, dicts and cells, to which Python has no weak references,
are held here, and released after a garbage collection if nothing else holds them; those in a
reference cycle stay until there are too many.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Mapping

from xfunc.cache.mutation_guard import end_watches

Place = tuple[int, str | None]

MOST = 4096  # objects
_OURS = 2  # references to an object that only its `_Changed` holds: `getrefcount` counts its own


class Mutated:
    """The value of a place that a function has changed: equal only to itself."""

    def __init__(self, kind: type):
        self._kind = kind.__name__

    def __repr__(self) -> str:
        return f"<{self._kind} that the function changes>"


class _Changed:
    """An object with places that were changed, and their marks."""

    def __init__(self, owner: object):
        self.marks: dict[str | None, Mutated] = {}
        self.held: object = None
        try:
            key = id(owner)
            self._reference = weakref.ref(owner, lambda _: _forget(key))
        except TypeError:
            self.held = owner

    def is_dead(self) -> bool:
        """Whether nothing else holds the object."""
        return self.held is not None and sys.getrefcount(self.held) <= _OURS


_changed: dict[int, _Changed] = {}


def _forget(key: int) -> None:
    _changed.pop(key, None)


def mark_of(owner: object, label: str | None) -> Mutated | None:
    """The mark of a place; None if it counts by value."""
    found = _changed.get(id(owner))
    return None if found is None else found.marks.get(label)


def is_marked(place: Place) -> bool:
    """Whether a place does not count by value, given the identity of its object."""
    return place[0] in _changed and place[1] in _changed[place[0]].marks


def count() -> int:
    """How many objects have such places."""
    return len(_changed)


def mark(places: Mapping[Place, object]) -> None:
    """Let places no longer count by value; their objects are given."""
    for (key, label), owner in places.items():
        if key not in _changed:
            _changed[key] = _Changed(owner)
        _changed[key].marks.setdefault(label, Mutated(type(owner)))
    for key in list(_changed)[: max(0, len(_changed) - MOST)]:
        _forget(key)
    end_watches()


def _sweep(phase: str, _: Mapping[str, int]) -> None:
    """Forget objects that nothing else holds."""
    if phase == "stop":
        for key, changed in list(_changed.items()):
            if changed.is_dead():
                _forget(key)


gc.callbacks.append(_sweep)


def forget() -> None:
    """Let all places count by value again."""
    if _changed:
        _changed.clear()
        end_watches()
