"""`xfunc.backends.active`: the runtime that "auto" chooses."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import xfunc as xf
from xfunc.backends import active

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def same_backend_afterwards() -> Iterator[None]:
    yield
    xf.config.set_backend(os.environ.get("XFUNC_BACKEND", "torch_xla"))


def test_set_backend_auto_is_the_default() -> None:
    xf.config.set_backend("auto")
    assert active.runtime().name == "pjrt"
    with pytest.raises(ValueError, match="choose one of 'torch_xla', 'pjrt' and 'auto'"):
        xf.config.set_backend("automatic")
