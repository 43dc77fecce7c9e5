"""Factorisations spelled out, as programs for devices without LAPACK have them."""

from __future__ import annotations

import pytest
import torch

from tests.backends.test_lapack import RECTANGULAR, check
from xfunc.backends import active


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("name", RECTANGULAR)
def test_linalg_without_lapack(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As programs for elsewhere have it."""
    monkeypatch.setattr("xfunc.backends.pjrt.backend.use_lapack", lambda _: None)
    check(RECTANGULAR[name], torch.randn(2, 5, 4))


@pytest.mark.torch_xla
@pytest.mark.parametrize("name", ["svd", "qr", "eigh", "solve"])
def test_linalg_without_symbols_of_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch_xla's library has no ELF symbols, programs cannot call LAPACK."""
    monkeypatch.setattr(type(active.runtime()), "calls_host", lambda _: False)
    check(RECTANGULAR[name], torch.randn(2, 5, 4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_lu_factor_pivots_without_lapack(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LAPACK compares complex numbers by the sum of their parts; eager torch on GPUs, too."""
    monkeypatch.setattr("xfunc.backends.pjrt.backend.use_lapack", lambda _: None)
    check(torch.linalg.lu_factor, torch.randn(50, 5, 6, dtype=dtype))
