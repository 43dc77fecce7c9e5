"""Changes of the process that several threads need at once."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any


class Counted:
    """A change that the first of several threads makes, and the last one undoes.

    It is a context manager, which threads share; a thread may enter it again.

    Args:
        change: makes the change for a block.
    """

    def __init__(self, change: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        self._change, self._stack = change, contextlib.ExitStack()
        self._guard: Any = threading.RLock()
        self._users: dict[int, int] = {}  # how often each thread has entered it
        _all.add(self)

    def __enter__(self) -> None:
        here = threading.get_ident()
        with self._guard:
            if not self._users:
                self._stack.enter_context(self._change())
            self._users[here] = self._users.get(here, 0) + 1

    def __exit__(self, *_: object) -> None:
        here = threading.get_ident()
        with self._guard:
            self._users[here] -= 1
            if not self._users[here]:
                del self._users[here]
            if not self._users:
                self._stack.close()

    def renew(self) -> None:
        """Forget the other threads, in a fork."""
        self._guard._at_fork_reinit()
        if self._users:
            here = threading.get_ident()
            self._users = {k: n for k, n in self._users.items() if k == here}
            if not self._users:
                self._stack.close()


_all: weakref.WeakSet[Counted] = weakref.WeakSet()


def _renew() -> None:
    for counted in list(_all):
        counted.renew()


os.register_at_fork(after_in_child=_renew)
