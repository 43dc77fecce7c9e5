"""Collecting garbage while packages are loaded."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator

_OF_PYTHON = 1000  # Python 3.12 starts with some hundred frozen objects of its own


def has_frozen() -> bool:
    """Whether somebody has frozen objects, which ``gc.unfreeze`` would thaw."""
    return gc.get_freeze_count() >= _OF_PYTHON


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Collect no garbage in a block that loads packages.

    It makes objects by the hundred thousand, nearly all of which stay, and Python would look at all
    of them again and again. Afterwards they count as old: a full collection, which may never come,
    is the first to look at them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not has_frozen():  # Otherwise somebody else's would thaw.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
