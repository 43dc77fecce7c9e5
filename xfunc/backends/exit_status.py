"""The status with which a program is about to exit, for functions registered with `atexit`.

NOTE [statuses]: Python exposes no hook for the status: `sys.excepthook` is not called for a
SystemExit. But it drops the error before it calls those functions, and then there is no frame
below: a SystemExit that is caught is dropped by the code that caught it.
"""

from __future__ import annotations

import sys
from typing import NoReturn

_status = 0
_before = sys.exit


class _Exit(SystemExit):
    def __del__(self) -> None:
        global _status
        if sys._getframe().f_back is None:
            _status = _number(self.code)


_Exit.__name__, _Exit.__qualname__, _Exit.__module__ = "SystemExit", "SystemExit", "builtins"


def begin() -> None:
    """Note the statuses given to `sys.exit`."""
    global _before
    if sys.exit is not _exit:
        _before, sys.exit = sys.exit, _exit


def end() -> None:
    """Restore `sys.exit`."""
    if sys.exit is _exit:
        sys.exit = _before


def status() -> int:
    """The status of the `sys.exit` that ends the program; 0 if none does."""
    return _status


def _exit(status: object = None, /) -> NoReturn:
    raise _Exit(*status) if isinstance(status, tuple) else _Exit(status)


def _number(code: object) -> int:
    """The exit status for an argument of `sys.exit`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1
