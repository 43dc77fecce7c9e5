"""Runs of examples."""

from pathlib import Path

import pytest

from tests.support import gallery
from tests.support.fresh import Server


@pytest.fixture
def run(fresh: Server, tmp_path: Path) -> gallery.Run:
    """The result of an example's `main`."""
    return lambda example: gallery.run(example, fresh, tmp_path)
