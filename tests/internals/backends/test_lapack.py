"""Factorisations spelled out, as programs for devices without LAPACK have them."""

from __future__ import annotations

import pytest
import torch

from tests.backends.test_lapack import RECTANGULAR, check


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("name", RECTANGULAR)
def test_linalg_without_lapack(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As programs for elsewhere have it."""
    monkeypatch.setattr("xfunc.backends.pjrt.backend.use_lapack", lambda _: None)
    check(RECTANGULAR[name], torch.randn(2, 5, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_lu_factor_pivots_without_lapack(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAPACK compares complex numbers by the sum of their parts; eager torch on GPUs, too."""
    monkeypatch.setattr("xfunc.backends.pjrt.backend.use_lapack", lambda _: None)
    check(torch.linalg.lu_factor, torch.randn(50, 5, 6, dtype=dtype))
