"""Fixtures of tests of the cache."""

import sys
import types

import pytest


@pytest.fixture
def of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dataclasses look their module up."""
    monkeypatch.setitem(sys.modules, "of_the_user", types.ModuleType("of_the_user"))
