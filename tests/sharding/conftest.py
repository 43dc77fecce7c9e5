"""These tests run on 8 virtual devices: see `tests/conftest.py`."""

import pytest

MESHES = [((8,), ("x",)), ((4, 2), ("x", "y")), ((2, 2, 2), ("x", "y", "z"))]


@pytest.fixture(params=MESHES, ids=str)
def any_mesh(request: pytest.FixtureRequest) -> "object":
    """A mesh of one, two and three axes."""
    import xfunc as xf

    return xf.make_mesh(*request.param)


@pytest.fixture
def mesh() -> "object":
    """A mesh of two axes."""
    import xfunc as xf

    return xf.make_mesh((4, 2), ("x", "y"))


@pytest.fixture(params=["GSPMD", "Shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of XLA's partitioners; Shardy is the backend "pjrt"'s."""
    import xfunc as xf

    if request.param == "Shardy":
        request.getfixturevalue("pjrt")
    monkeypatch.setattr(xf.config, "use_shardy_partitioner", request.param == "Shardy")
