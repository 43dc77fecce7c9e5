"""What is drawn anew each day, and shown with the day that draws it again.

``TESTS_DAY=740307 python -m tests`` repeats the draws of a day; the head of a report names its own.
"""

from __future__ import annotations

import datetime
import os
import zlib
from collections.abc import Collection
from pathlib import Path

_TESTS = Path(__file__).parents[1]

# In the environment, so that all processes of a run have one day.
DAY = int(
    os.environ.setdefault("TESTS_DAY", str(datetime.datetime.now(datetime.UTC).date().toordinal()))
)


def is_due(name: str, days: int) -> bool:
    """Whether a case is one of those of this day, where each runs once in so many days."""
    return (zlib.crc32(name.encode()) + DAY) % days == 0


def is_file_due(path: Path, days: int, named: Collection[Path] = ()) -> bool:
    """`is_due` of a file of tests; one that is named always is."""
    return path in named or is_due(path.relative_to(_TESTS).as_posix(), days)
