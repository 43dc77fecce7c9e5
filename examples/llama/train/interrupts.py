"""Ending on a signal: a run between two steps, and what else a program does at once."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NoReturn, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)  # from a scheduler, and from Ctrl-C


class Interrupted(KeyboardInterrupt):
    """A signal has arrived, and the program ends at once."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def _interrupt(number: int, _: object) -> NoReturn:
    raise Interrupted(number)


def raised() -> AbstractContextManager[None]:
    """Let SIGTERM and SIGINT raise `Interrupted` in a block, so that it can clean up."""
    return _handled(_interrupt)


@contextlib.contextmanager
def _handled(handler: Callable[[int, object], object]) -> Iterator[None]:
    """Let a function handle the signals in a block; only the main thread may."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {s: signal.signal(s, handler) for s in _SIGNALS} if is_main else {}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class Interrupts(contextlib.ExitStack):
    """Records SIGTERM and SIGINT within its ``with`` block; a second one interrupts at once.

    Attributes:
        noted: whether one has arrived.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted = False

    def __enter__(self) -> Self:
        self.enter_context(_handled(self._note))
        return self

    def _note(self, number: int, _: object) -> None:
        if self.noted:
            raise Interrupted(number)
        self.noted = True
