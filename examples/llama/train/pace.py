"""When steps end: the share of the time that they have, and a watchdog for one that never does."""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

_LAST = 20  # steps that the median is taken over
_ENOUGH = 3  # steps before it means anything
_LEAST = 60.0  # seconds: any host may pause for less
OFTEN = 1.0  # seconds between two looks of the watchdog


class Pace:
    """When steps begin and end; the first one counts as compilation."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._first = clock, clock()
        self._since: float | None = None  # None: what goes on is no step
        self._compiled, self._in_steps = False, 0.0
        self._took = deque[float](maxlen=_LAST)

    def begin(self) -> None:
        """A step is launched."""
        if self._since is None:
            self._since = self._clock()

    def end(self) -> None:
        """A step has ended; the next one begins, unless there is a pause."""
        now = self._clock()
        if self._compiled and self._since is not None:
            self._took.append(now - self._since)
            self._in_steps += now - self._since
        self._compiled, self._since = True, now

    def pause(self) -> None:
        """What follows is no step, until one is launched."""
        self._since = None

    def goodput(self) -> float | None:
        """The share of the time since the beginning that went into steps; None if none ended."""
        passed = self._clock() - self._first
        return self._in_steps / passed if self._took and passed else None

    def late(self, times: float) -> tuple[float, float] | None:
        """For how long the present step has gone on, and the median of the last ones.

        None unless that is more than `times` the median, and more than a minute.
        """
        since, took = self._since, [*self._took]
        if since is None or len(took) < _ENOUGH:
            return None
        usual, now = statistics.median(took), self._clock() - since
        return (now, usual) if now > max(times * usual, _LEAST) else None


class Watchdog:
    """Tells once when a step takes so many times as long as the median of the last ones.

    A thread looks every second while the context is open. `tell` is given for how long the step has
    gone on, and the median.
    """

    def __init__(self, pace: Pace, times: float, tell: Callable[[float, float], None]):
        self._pace, self._times, self._tell = pace, times, tell
        self._told, self._ended = False, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def look(self) -> None:
        """Tell, if it is time to; then never again."""
        if not self._told and (late := self._pace.late(self._times)) is not None:
            self._told = True
            self._tell(*late)

    def _watch(self) -> None:
        while not self._ended.wait(OFTEN):
            self.look()
