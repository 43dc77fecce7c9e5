"""These tests run on 8 virtual devices, which must be there before the client starts.

`tests/test_sharding.py` runs each of these files in a process of its own. To run one by hand:

    CPU_NUM_DEVICES=8 python -m pytest tests/sharding/test_arrays.py
"""

import os

import pytest

if os.environ.get("CPU_NUM_DEVICES") != "8":
    collect_ignore_glob = ["test_*.py"]


MESHES = [((8,), ("x",)), ((4, 2), ("x", "y")), ((2, 2, 2), ("x", "y", "z"))]


@pytest.fixture(params=MESHES, ids=str)
def any_mesh(request: pytest.FixtureRequest) -> "object":
    """A mesh of one, two and three axes."""
    import xfunc as xf

    return xf.make_mesh(*request.param)
