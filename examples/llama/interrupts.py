"""Ending a run between two steps on a signal."""

import signal
import threading
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)  # from a scheduler, and from Ctrl-C


class Interrupts:
    """Records SIGTERM and SIGINT within its ``with`` block; a second one interrupts at once.

    Attributes:
        noted: whether one has arrived.
    """

    def __init__(self) -> None:
        self.noted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Others may not set handlers.
            self._before = {s: signal.signal(s, self._note) for s in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        if self.noted:
            raise KeyboardInterrupt("the second signal")
        self.noted = True
