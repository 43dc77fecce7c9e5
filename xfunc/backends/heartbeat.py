"""Processes that run together monitor each other: each must report regularly that it is alive.

In a computation they share, they wait for each other: if one died, the others would wait for a long
time, or for ever, deep within XLA. So a thread of each process exchanges messages with the first
process, a few times a second. It notices at once if a process has ended, after a while if its host
is gone or it is stopped, learns of errors in others, and compares which programs they have run.

NOTE [aborts]: JAX connects the processes through a service in the first one. If that is killed,
JAX's client aborts the others at once, and its message does not name the lost process. So an abort
waits for a few seconds, in which the thread reports it and ends the process.
"""

import contextlib
import ctypes
import datetime
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, Store

from xfunc.backends import calls
from xfunc.backends.calls import Call

_EVERY = 0.3  # seconds from one round to the next
_SILENCE = 100.0  # seconds after which a process that says nothing counts as lost
_SIZE = 1024  # bytes of a message

# Reports of processes and answers of the first one: one of these characters, then a text. The text
# of a process that is well or has left is its latest run: see NOTE [programs out of step].
_WELL, _LEFT, _FAILED = " ", "l", "f"
_GO_ON, _END, _LOST = " ", "e", "x"


class Heartbeat:
    """Watches the other processes. All must create one at the same time.

    Args:
        store: one that the processes share.
        index: the number of this process.
        count: how many they are.
        lost: called in another thread with `index` and what has happened, if a process has failed
            or is gone and this one has not. It must end this process, since the main thread may
            never continue.
        silence: seconds after which a process that says nothing counts as lost.

    Attributes:
        index: as given.
        pid: the process that watches; its forks do not.
    """

    def __init__(
        self,
        store: Store,
        index: int,
        count: int,
        lost: Callable[[int, str], object],
        silence: float = _SILENCE,
    ):
        self.index, self.pid = index, os.getpid()
        self._count, self._lost, self._silence = count, lost, silence
        # Not one of torch.distributed's groups: threads must not mix their messages, and a program
        # may destroy those.
        timeout = datetime.timedelta(seconds=silence)
        self._group: Any = ProcessGroupGloo(store, index, count, timeout)  # It lacks types.
        self._said, self._news = _WELL, ""
        self._calls = calls.own
        self._failing = self._failed = False
        self._heard, self._changed = threading.Event(), threading.Event()
        _delay_aborts()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def leave(self, patience: float | None = None) -> bool:
        """Wait until all processes have left, or so many seconds; returns whether they have."""
        self._say(_LEFT)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def fail(self, text: str) -> str | None:
        """Report to the others that this process has failed, unless another one failed first.

        Returns:
            The failure of the other one; None if this process is the first to fail.
        """
        self._failing = True
        # The first process should report an error that occurs in all of them. And an error here may
        # follow from the end of another process, news of which is on its way.
        if not self._heard.wait(2.0 if self.index == 0 else 4.0):
            self._failed = True
            self._say(_FAILED + text)
            self._thread.join(10.0)
        return None if self._failed or not self._news else self._news

    def _say(self, what: str) -> None:
        self._said = what
        self._changed.set()

    def _run(self) -> None:
        self._news = self._lead() if self.index == 0 else self._follow()
        self._heard.set()
        if self._news and not self._failing:
            self._lost(self.index, self._news)

    def _lead(self) -> str:
        """Listen to the others in turn; returns the failure, empty if all have left."""
        while True:
            said = [self._report()]
            for k in range(1, self._count):
                try:
                    said.append(self._receive(k))
                except RuntimeError as error:
                    said.append(f"{_LOST}{self._gone(k, error)}")
            bad = [(k, text) for k, text in enumerate(said) if text[0] in (_FAILED, _LOST)]
            # A lost process may be the cause of the others' failures.
            bad.sort(key=lambda pair: pair[1][0] != _LOST)
            answer = _END if all(text[0] == _LEFT for text in said) else _GO_ON
            if bad:
                k, text = bad[0]
                told = f"process {k} failed: {text[1:]}" if text[0] == _FAILED else text[1:]
                answer = _LOST + told
            elif told := self._out_of_step(said):
                answer = _LOST + told
            for k in range(1, self._count):
                if said[k][0] != _LOST:
                    self._answer(answer, k)
            if answer != _GO_ON:
                return answer[1:]
            self._changed.wait(_EVERY)
            self._changed.clear()

    def _report(self) -> str:
        said = self._said
        return said + str(self._calls.last) if said in (_WELL, _LEFT) else said

    def _out_of_step(self, said: Sequence[str]) -> str | None:
        """How the programs that processes ran differ, if they do."""
        latest = [Call.read(text[1:]) for text in said]
        for k, call in enumerate(latest[1:], 1):
            if result := self._calls.mismatch(k, call):
                return result
        return calls.unanswered(latest, [k for k, text in enumerate(said) if text[0] == _LEFT])

    def _follow(self) -> str:
        """Report repeatedly to the first; returns the failure, empty if all have left."""
        try:
            while True:
                self._send(self._report(), 0)
                if (answer := self._receive(0)) != _GO_ON:
                    return answer[1:]
        except RuntimeError as error:
            return self._gone(0, error)

    def _send(self, text: str, k: int) -> None:
        self._group.send([_packed(text)], k, 0).wait()

    def _receive(self, k: int) -> str:
        found = torch.empty(_SIZE, dtype=torch.uint8)
        self._group.recv([found], k, 0).wait()
        return bytes(found.tolist()).rstrip(b"\0").decode(errors="replace")

    def _answer(self, text: str, k: int) -> None:
        with contextlib.suppress(RuntimeError):  # It is gone: the next round will notice.
            self._send(text, k)

    def _gone(self, k: int, error: RuntimeError) -> str:
        return (
            f"process {k} is gone: it was killed, crashed, or has said nothing for "
            f"{self._silence:.0f} seconds ({str(error).strip().splitlines()[-1]})"
        )


def _delay_aborts() -> None:
    """See NOTE [aborts]; another thread of the process continues meanwhile."""
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    # A handler is given the signal's number: 6 seconds. It runs no Python, which may be busy.
    before = libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
    if before:  # Such as that of faulthandler.
        libc.signal(signal.SIGABRT, before)


def _packed(text: str) -> torch.Tensor:
    data = text.encode(errors="backslashreplace")[:_SIZE]
    return torch.frombuffer(bytearray(data.ljust(_SIZE, b"\0")), dtype=torch.uint8)
