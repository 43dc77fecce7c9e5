"""Kernels that torch_xla lacks."""

from __future__ import annotations

import pytest
import torch

import xfunc as xf
from xfunc.ops import registry

pytestmark = pytest.mark.quick


def test_efficientzerotensor_not_lowered_upstream() -> None:
    """Fails when torch_xla has a kernel for `_efficientzerotensor`: then ours can go."""
    xf.jit(torch.sin)(torch.ones(2))
    assert "_efficientzerotensor" in registry.kernels()
    assert "_efficientzerotensor" not in registry.lowered_upstream
