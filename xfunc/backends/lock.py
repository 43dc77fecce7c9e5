"""The lock that guards the process-wide switches of torch_xla."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

R = TypeVar("R")

_RLock: Any = type(threading.RLock())


class _Lock(_RLock):
    """One lock for everything that touches process-wide switches of torch_xla: traces and runs.

    A thread that the holder of the lock waits for would wait forever; it is refused instead.

    Attributes:
        refusing: an entry for each thread to refuse.
    """

    def __init__(self) -> None:
        super().__init__()
        self._refused = threading.local()
        self.refusing: list[None] = []

    @contextlib.contextmanager
    def refused(self) -> Iterator[None]:
        """Refuse the lock to this thread, which a running program is waiting for."""
        before = self._is_refused()
        self._refused.now = True
        self.refusing.append(None)
        try:
            yield
        finally:
            self.refusing.pop()
            self._refused.now = before

    def unless_refused(self) -> contextlib.AbstractContextManager[object]:
        """The lock, or nothing in a thread that is refused it."""
        return contextlib.nullcontext() if self._is_refused() else self

    def renew(self) -> None:
        """Let nobody hold it, in a fork: the threads that did are not in it."""
        self._at_fork_reinit()
        self.refusing.clear()

    def is_held_here(self) -> bool:
        """Whether this thread holds it."""
        return self._is_owned()

    def _is_refused(self) -> bool:
        return getattr(self._refused, "now", False)

    def __enter__(self) -> None:
        # JAX may run a program in the thread that holds the lock.
        if self.refusing and self._is_refused():
            raise RuntimeError(
                "xfunc was called from a callback that a running program is waiting for"
                "\nHint: compute there with numpy, or with torch on the CPU."
            )
        if not self.acquire(False):
            self._wait()

    def _wait(self) -> None:
        while not self.acquire(timeout=1.0):
            if self._holder_waits_for_a_thread():
                raise RuntimeError(
                    "xfunc was called from a thread that a function being traced in another "
                    "thread is waiting for\nHint: make the call in the thread that traces, "
                    "or start the thread outside the traced function."
                )

    def _holder_waits_for_a_thread(self) -> bool:
        owner = re.search(r"owner=(\d+)", repr(self))
        frame = sys._current_frames().get(int(owner[1])) if owner else None
        waiting = (os.sep + "threading.py", os.sep + "queue.py", os.sep + "_base.py")
        return frame is not None and frame.f_code.co_filename.endswith(waiting)


lock = _Lock()


def once(make: Callable[[], R]) -> functools._lru_cache_wrapper[R]:
    """`functools.cache` of a function that starts something: other threads wait for the first."""
    made = functools.cache(make)

    @functools.cache
    @functools.wraps(make)
    def get() -> R:
        with lock:
            return made()

    return get
