"""Packages that `python -m xfunc.export pack` has put into a copy of xfunc."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = "packed"
"""Where they lie in the copy."""


def find_packed() -> None:
    """Let them be imported, where they are not installed."""
    folder = Path(__file__).parents[1] / FOLDER
    if folder.is_dir():
        sys.path.append(str(folder))
