"""`xfunc.backends.active`: the runtime that "auto" chooses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import xfunc as xf
from xfunc.backends import active
from xfunc.core import device

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def same_backend_afterwards() -> Iterator[None]:
    yield
    xf.config.set_backend(os.environ.get("XFUNC_BACKEND", "torch_xla"))


@pytest.mark.parametrize(
    ("gpus", "installed", "chosen"),
    [
        (["/dev/nvidia0"], "torch_xla jax_cuda12_plugin", "pjrt"),
        (["/dev/nvidia0"], "torch_xla jax_cuda13_plugin", "pjrt"),
        (["/dev/nvidia0"], "torch_xla", "torch_xla"),
        ([], "torch_xla jax_cuda12_plugin", "torch_xla"),
    ],
)
def test_set_backend_auto_choice(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], installed: str, chosen: str
) -> None:
    monkeypatch.setattr(active, "glob", SimpleNamespace(glob=lambda pattern: gpus))
    monkeypatch.setattr(device, "is_installed", installed.split().__contains__)
    monkeypatch.setattr(device, "TRACER", "torch_xla")
    xf.config.set_backend("auto")
    assert active.runtime().name == chosen
    with pytest.raises(ValueError, match="choose one of 'torch_xla', 'pjrt' and 'auto'"):
        xf.config.set_backend("automatic")
