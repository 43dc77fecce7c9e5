"""What a program depends on without its function holding it.

NOTE [guards]: a function may name a module as a global, or reach it through other functions; the
mode of the module is then no part of the function's value. So it is found out during the trace:
`depend_on` leaves a guard with every program being traced. A guard is a callable, and the program
is found again only while it returns the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

Guard = Callable[[], Hashable]

MAX_STATES = 256  # of one guard, and programs for one key; the oldest goes

_traced_now = threading.local()


class State:
    """What a guard returns for the state of an object: compared by identity, which is quick."""

    def __init__(self, value: Hashable):
        self.value = value


@contextlib.contextmanager
def collect_guards() -> Iterator[dict[Guard, None]]:
    """A set that gets the guards left until the block ends."""
    stack = _traced_now.__dict__.setdefault("stack", [])
    stack.append(found := {})
    try:
        yield found
    finally:
        stack.pop()


def depend_on(*guards: Guard) -> None:
    """Let all programs being traced now hold only while these guards return the same."""
    for found in _traced_now.__dict__.get("stack", ()):
        found.update(dict.fromkeys(guards))


class Guarded:
    """The programs of one key, each for other values of the guards."""

    def __init__(self) -> None:
        self.guards: tuple[Guard, ...] = ()
        self.programs: dict[tuple[Hashable, ...], Any] = {}

    def state(self) -> tuple[Hashable, ...]:
        """What the guards return now."""
        return tuple([guard() for guard in self.guards])

    def find(self) -> Any:
        """The program for the present state, or None."""
        depend_on(*self.guards)
        return self.programs.get(self.state())

    def add(self, program: Any, guards: Iterable[Guard]) -> None:
        """Keep a program for the present state."""
        guards = tuple(dict.fromkeys((*self.guards, *guards)))
        if guards != self.guards:  # The programs so far do not tell what they need of the new ones.
            self.programs.clear()
            self.guards = guards
        self.programs[self.state()] = program
        if len(self.programs) > MAX_STATES:
            del self.programs[next(iter(self.programs))]
