"""Running transforms without tracing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator

from xfunc.core import ambient


class _Switches(threading.local):
    eager = False


_switches = _Switches()


@contextlib.contextmanager
def disable_jit(disable: bool = True) -> Generator[None]:
    """Run transforms eagerly, one operation at a time, on the tensors' own device."""
    before = _switches.eager
    _switches.eager = disable
    ambient.change_busy(1)
    try:
        yield
    finally:
        ambient.change_busy(-1)
        _switches.eager = before


def is_eager() -> bool:
    """Whether `disable_jit` is active."""
    return _switches.eager
