"""Ending a run between two steps when it is told to."""

import signal
import threading
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)  # what a scheduler sends, and what Ctrl-C does


class Interrupts:
    """Within its ``with`` block SIGTERM and SIGINT are noted; the second one interrupts at once.

    Attributes:
        noted: whether one has come.
    """

    def __init__(self) -> None:
        self.noted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # No other may set handlers.
            self._before = {s: signal.signal(s, self._note) for s in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        if self.noted:
            raise KeyboardInterrupt("the second signal")
        self.noted = True
