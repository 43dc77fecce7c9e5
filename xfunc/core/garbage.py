"""Collecting garbage while packages are loaded."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


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
            if not gc.get_freeze_count():  # Otherwise somebody else's would thaw.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
