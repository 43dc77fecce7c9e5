"""Garbage collection while modules are loaded."""

from __future__ import annotations

import gc

import pytest

from xfunc.core.garbage import uncollected

pytestmark = pytest.mark.quick


def test_uncollected_objects_are_old_garbage() -> None:
    def young(x: object) -> bool:
        return any(o is x for o in gc.get_objects(generation=0))

    with uncollected():
        assert not gc.isenabled()
        loaded = [[]]
        assert young(loaded)
    assert gc.isenabled()
    assert not young(loaded)
    assert gc.get_freeze_count() == 0
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with uncollected():
            pass
        assert 0 < frozen <= gc.get_freeze_count()
    finally:
        gc.unfreeze()
