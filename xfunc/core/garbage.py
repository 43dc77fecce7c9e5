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

    Importing creates hundreds of thousands of permanent objects, which each collection would scan
    again. After the block they are in the oldest generation, which only a full collection scans.
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
