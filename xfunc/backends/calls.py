"""The programs that this process has run with others, which must have run the same.

NOTE [programs out of step]: XLA pairs the collectives of processes by their order. If two processes
run different programs, or the same in another order, they wait for ever, or get the data of another
program. So each process numbers its runs of programs that communicate, and keeps a digest of all up
to each. The first run of a program compares them at once (`xfunc.backends.pjrt.run_barrier`); later
runs must be cheap, and the watch, which exchanges messages anyway, compares them a few times a
second (`xfunc.backends.heartbeat`).
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

_RECENT = 4096  # runs that a process remembers; the others are rarely further behind
_LENGTH = 12  # characters of a digest that are compared
_NAME = 200  # characters of a name that are sent
HINT = "call the same functions, with the same shapes, in the same order in all processes"


class Call(NamedTuple):
    """The run of a program that communicates.

    Attributes:
        number: from 1.
        history: a digest of this program and of those before it.
        program: its fingerprint.
        meets: whether it has not begun: the processes are comparing their next programs.
        name: of the user's function.
    """

    number: int = 0
    history: str = "-"
    program: str = "-"
    meets: bool = False
    name: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.history} {self.program} {self.meets:d} {self.name[:_NAME]}"

    @classmethod
    def read(cls, text: str) -> Call:
        """Parse the output of `str`."""
        number, history, program, meets, name = text.split(" ", 4)
        return cls(int(number), history, program, meets == "1", name)


class Calls:
    """The runs of one process. Threads may share it.

    Attributes:
        last: the latest one.
    """

    def __init__(self) -> None:
        self.last = Call()
        self._recent: deque[Call] = deque(maxlen=_RECENT)
        self._lock = threading.Lock()
        self._ahead: dict[int, Call] = {}

    def add(self, name: str, program: str, meets: bool = False) -> Call:
        """Count a run that is about to begin; returns the one before."""
        with self._lock:
            before = self.last
            data = f"{before.history}{program}".encode()
            history = hashlib.sha256(data).hexdigest()[:_LENGTH]
            self.last = Call(before.number + 1, history, program[:_LENGTH], meets, name)
            self._recent.append(self.last)
            return before

    def begin(self) -> None:
        """Mark the last run as begun: its meeting has succeeded."""
        with self._lock:
            self.last = self._recent[-1] = self.last._replace(meets=False)

    def fail(self, before: Call) -> None:
        """Mark the last run as never begun: its meeting has failed, in all processes.

        It keeps its number, as a report of another process's next run may arrive later.
        """
        with self._lock:
            self.last = self._recent[-1] = self.last._replace(history=before.history)

    def mismatch(self, k: int, its: Call) -> str | None:
        """How the runs of another process differ from those of this one, process 0, if they do.

        Args:
            k: the number of the process.
            its: its latest run.
        """
        its = self._ahead.pop(k, its)
        with self._lock:
            own = next((c for c in reversed(self._recent) if c.number <= its.number), None)
        if own is None or its.history == own.history or (own.meets and its.meets):
            return None
        if own.number < its.number:  # Compared when this process has come so far.
            self._ahead[k] = its
            return None
        if own.program == its.program:
            return (
                f"process {k} ran other programs than process 0 before their run {own.number} of a "
                f"program that communicates, {own.name}: {HINT}"
            )
        which = f"{its.name} in process {k} and {own.name} in process 0"
        if own.name == its.name:
            which = f"{own.name} in both, but another program in process {k} than in process 0"
        return f"run {own.number} of a program that communicates was {which}: {HINT}"


def unanswered(latest: Sequence[Call], ended: Collection[int]) -> str | None:
    """A process that runs more programs than a process that has ended, or None.

    Args:
        latest: the latest run of each process.
        ended: the indices of processes that have ended.
    """
    for k in ended:
        for j, call in enumerate(latest):
            if call.number > latest[k].number:
                return (
                    f"process {j} runs {call.name}, which communicates, and process {k} came to "
                    f"its end without it: {HINT}"
                )
    return None


own = Calls()
"""The runs of this process since it has joined others."""


def reset() -> None:
    """Count from the beginning."""
    global own
    own = Calls()
