"""Dependencies of a program on state outside of its function.

NOTE [guards]: a function may name a module as a global, or reach it through other functions; the
mode of the module is then not part of the function's value. So it is determined during the trace:
`depend_on` leaves a guard with every program being traced. A guard is a callable, and the program
is found again only as long as it returns the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import Any

Guard = Callable[[], Hashable]

MAX_STATES = 256  # of one guard, and programs for one set of them; the oldest is dropped
_MAX_GROUPS = 16  # of programs for one key


class _Thread(threading.local):
    open: tuple[dict[Guard, None], ...] = ()  # the sets of the programs that are being traced


_thread = _Thread()


class State:
    """A guard's result for the state of an object, compared by identity, which is fast."""

    def __init__(self, value: Hashable):
        self.value = value


@contextlib.contextmanager
def collect_guards() -> Generator[dict[Guard, None]]:
    """A set that collects the guards left in the block."""
    before, found = _thread.open, {}
    _thread.open = (*before, found)
    try:
        yield found
    finally:
        _thread.open = before


def depend_on(*guards: Guard) -> None:
    """Make all programs being traced valid only while these guards return the same."""
    for found in _thread.open:
        found.update(dict.fromkeys(guards))


class Guarded:
    """The programs of one key, each for different values of the guards.

    A program depends on the guards that were left while it was traced. In another state, the trace
    may have left other guards, so there is a group of programs for each set of guards.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[Guard, ...], dict[tuple[Hashable, ...], object]] = {}

    @property
    def size(self) -> int:
        """The number of programs."""
        return sum(map(len, self._groups.values()))

    def find(self) -> Any:
        """The program for the current state, or None."""
        for guards, programs in self._groups.items():
            result = programs.get(tuple([guard() for guard in guards]))
            if result is not None:
                depend_on(*guards)
                return result
        return None

    def only(self, program: object) -> tuple[tuple[Guard, Hashable], ...] | None:
        """The guards of a program and their values; None if not all programs have these guards."""
        if len(self._groups) != 1:
            return None
        ((guards, programs),) = self._groups.items()
        values = next((v for v, p in programs.items() if p is program), None)
        return None if values is None else tuple(zip(guards, values, strict=True))

    def add(self, program: object, guards: Iterable[Guard]) -> None:
        """Keep a program for the current state."""
        guards = tuple(dict.fromkeys(guards))
        programs = self._groups.setdefault(guards, {})
        programs[_state(guards)] = program
        if len(programs) > MAX_STATES:
            del programs[next(iter(programs))]
        if len(self._groups) > _MAX_GROUPS:
            del self._groups[next(iter(self._groups))]

    def changed(self) -> tuple[Guard, Hashable, Hashable] | None:
        """The first guard that differs from the latest program's, with its old and new values."""
        for guards, programs in reversed(self._groups.items()):
            for before in reversed(programs):
                for guard, old, new in zip(guards, before, _state(guards), strict=True):
                    if old != new:
                        return guard, old, new
        return None


def _state(guards: Iterable[Guard]) -> tuple[Hashable, ...]:
    """The current results of guards."""
    return tuple([guard() for guard in guards])
