"""The lock of the state that all threads share, and the turns of threads that make values.

NOTE [threads]: the lock is *shared*: a thread holds it while it looks for a program, and releases
it while it traces, compiles or runs one, which is when the user's code runs. Another thread that
needs the same program waits for its turn (`turn`), and then finds it. If the maker waits for that
very thread, directly or not, the thread makes it for itself. torch_xla's runtime has process-wide
switches: with it, one thread at a time traces, compiles or launches, and holds the lock meanwhile.

Process-wide switches of traces are counted (`xfunc.torchlib.global_flags`): the first open trace
sets a switch, and the last one resets it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

R = TypeVar("R")

_RLock: Any = type(threading.RLock())
_WAITING = (os.sep + "threading.py", os.sep + "queue.py", os.sep + "_base.py")
_POLL = 0.05  # seconds between two looks at a thread that is waited for
_MOST_MAKERS = 16  # of one value, each waiting for the next


class _Thread(threading.local):
    is_refused = False
    traces = 0


class _Lock(_RLock):
    """One lock for the state shared between threads: see NOTE [threads].

    A thread that the holder of the lock waits for would wait forever; it is refused instead.

    Attributes:
        refusing: an entry for each thread to refuse.
        is_shared: whether others may have it while its holder traces, compiles or runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = _Thread()
        self.refusing: list[None] = []
        self.is_shared = True

    @contextlib.contextmanager
    def refused(self) -> Iterator[None]:
        """Refuse the lock to this thread, which a running program is waiting for."""
        before = self._thread.is_refused
        self._thread.is_refused = True
        self.refusing.append(None)
        try:
            yield
        finally:
            self.refusing.pop()
            self._thread.is_refused = before

    def unless_refused(self) -> contextlib.AbstractContextManager[object]:
        """The lock, or nothing in a thread that is refused it."""
        return contextlib.nullcontext() if self._thread.is_refused else self

    def for_run(self) -> contextlib.AbstractContextManager[object]:
        """The lock for a block that launches programs; nothing if it is shared."""
        if not self.is_shared:
            return self
        self._check()
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def for_trace(self) -> Iterator[None]:
        """A block that traces: with the lock, or without if it is shared."""
        self._thread.traces += 1
        try:
            with self.let_go() if self.is_shared else self:
                self._check()
                yield
        finally:
            self._thread.traces -= 1

    @contextlib.contextmanager
    def let_go(self) -> Iterator[None]:
        """A block in which other threads may have the lock, if it is shared."""
        if not (self.is_shared and self._is_owned()):
            yield
            return
        count = self._release_save()
        try:
            yield
        finally:
            self._acquire_restore(count)

    def renew(self) -> None:
        """Reset in a forked child, where the owner thread does not exist."""
        self._at_fork_reinit()
        self.refusing.clear()

    def is_held_here(self) -> bool:
        """Whether this thread holds it."""
        return self._is_owned()

    def is_tracing_here(self) -> bool:
        """Whether this thread traces."""
        return self._thread.traces > 0

    def _check(self) -> None:
        # JAX may run a program in the thread that holds the lock.
        if self.refusing and self._thread.is_refused:
            raise RuntimeError(
                "xfunc was called from a callback that a running program is waiting for"
                "\nHint: compute there with numpy, or with torch on the CPU."
            )

    def __enter__(self) -> None:
        self._check()
        if not self.acquire(False):
            self._wait()

    def _wait(self) -> None:
        while not self.acquire(timeout=1.0):
            owner = re.search(r"owner=(\d+)", repr(self))
            if owner is not None and _waits_for_a_thread(int(owner[1])):
                raise _waited_for()


def _waited_for() -> RuntimeError:
    return RuntimeError(
        "xfunc was called from a thread that a function being traced in another "
        "thread is waiting for\nHint: make the call in the thread that traces, "
        "or start the thread outside the traced function."
    )


def _waits_for_a_thread(number: int) -> bool:
    """Whether a thread waits for another, as far as this can be seen."""
    frame = sys._current_frames().get(number)
    return frame is not None and frame.f_code.co_filename.endswith(_WAITING)


lock = _Lock()

launches = threading.RLock()
"""Held during launches that must be in order or one at a time: those on several devices, and those
of programs that call Python.
"""


class _Turn:
    """A thread that makes a value, and the event of its end."""

    def __init__(self) -> None:
        self.thread, self.done = threading.get_ident(), threading.Event()


class _Turns:
    """The makers of values, and the threads that wait for them."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # The key may have a user's `__hash__`.
        self._taken: dict[Hashable, list[_Turn]] = {}
        self._awaited: dict[int, _Turn] = {}  # by the thread that waits

    def take(self, what: Hashable, alone: bool) -> _Turn:
        """Wait for the turn to make a value; with `alone`, it must not be made twice at once."""
        own = _Turn()
        with self._guard:
            if what not in self._taken:
                self._taken[what] = [own]
                return own
        with lock.let_go():
            blocked = 0
            while True:
                with self._guard:
                    makers = self._taken.get(what, [])
                    again = any(m.thread == own.thread for m in makers)
                    if blocked > 1 and (alone or len(makers) > _MOST_MAKERS):
                        raise _waited_for()
                    if not makers or again or blocked > 1:
                        self._taken[what] = [*makers, own]
                        return own
                    last = self._awaited[own.thread] = makers[-1]
                try:
                    last.done.wait(_POLL)
                    blocked = blocked + 1 if self._is_blocked(last.thread, own.thread) else 0
                finally:
                    del self._awaited[own.thread]

    def give(self, what: Hashable, own: _Turn) -> None:
        """End a turn, whether or not the value was made."""
        with self._guard:
            makers = self._taken.pop(what)
            if len(makers) > 1:
                self._taken[what] = [m for m in makers if m is not own]
        own.done.set()

    def renew(self) -> None:
        """Forget the other threads, in a fork."""
        self._guard._at_fork_reinit()  # type: ignore[attr-defined]
        here = threading.get_ident()
        kept = {k: [m for m in makers if m.thread == here] for k, makers in self._taken.items()}
        self._taken = {k: makers for k, makers in kept.items() if makers}
        self._awaited.clear()

    def _is_blocked(self, thread: int, by: int) -> bool:
        """Whether a thread waits for another one, or for somebody who is not known."""
        seen = set[int]()
        while thread not in seen and thread != by:
            seen.add(thread)
            awaited = self._awaited.get(thread)
            if awaited is None:
                return _waits_for_a_thread(thread)
            thread = awaited.thread
        return True


_turns = _Turns()


@contextlib.contextmanager
def turn(what: Hashable, alone: bool = False) -> Iterator[None]:
    """A block that makes a value, in one thread at a time: check first whether it exists now.

    If the thread that makes it waits for this one, the block is run at once.

    Args:
        what: identifies the value.
        alone: it must not be made twice at once.

    Raises:
        RuntimeError: the thread that makes it waits for this one, and only one at a time can.
    """
    if not lock.is_shared:  # One thread at a time makes anything.
        yield
        return
    own = _turns.take(what, alone)
    try:
        yield
    finally:
        _turns.give(what, own)


def renew() -> None:
    """Forget the other threads, which are not in a fork."""
    if not lock.is_held_here():  # Another thread held it, if any did.
        lock.renew()
    launches._at_fork_reinit()  # type: ignore[attr-defined]
    _turns.renew()


def once(make: Callable[[], R]) -> functools._lru_cache_wrapper[R]:
    """`functools.cache` of a function that starts something: other threads wait for the first."""
    made = functools.cache(make)

    @functools.cache
    @functools.wraps(make)
    def get() -> R:
        with lock:
            return made()

    return get
