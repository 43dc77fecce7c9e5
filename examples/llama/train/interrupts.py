"""Ending on a signal: a run between two steps, and what else a program does at once."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)  # from a scheduler, and from Ctrl-C


class Interrupted(KeyboardInterrupt):
    """A signal has arrived, and the program ends at once."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def _interrupt(number: int, _: object) -> NoReturn:
    raise Interrupted(number)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Let SIGTERM and SIGINT raise `Interrupted` in a block, so that it can clean up."""
    before = _handle(_interrupt)
    try:
        yield
    finally:
        _restore(before)


def _handle(handler: Callable[[int, object], object]) -> dict[signal.Signals, Any]:
    """Set the handler of the signals; returns what handled them before."""
    if threading.current_thread() is not threading.main_thread():  # Others may not.
        return {}
    return {s: signal.signal(s, handler) for s in _SIGNALS}


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


class Interrupts:
    """Records SIGTERM and SIGINT within its ``with`` block; a second one interrupts at once.

    Attributes:
        noted: whether one has arrived.
    """

    def __init__(self) -> None:
        self.noted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = _handle(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)

    def _note(self, number: int, _: object) -> None:
        if self.noted:
            raise Interrupted(number)
        self.noted = True
