"""Functions of matrices that torch has since 2.14: the kernels, and torch's own names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

import xfunc as xf
from xfunc.ops import linalg

POLAR: Any = getattr(torch.linalg, "polar", linalg.polar)
SQRTH: Any = getattr(torch.linalg, "matrix_sqrth", linalg.matrix_sqrth)


def drawn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_polar_decomposition_is_scipys(dtype: torch.dtype) -> None:
    a = drawn(2, 4, 3, dtype=dtype)
    for found in (xf.jit(POLAR)(a), xf.vmap(POLAR)(a)):
        factors = xf.device_get(found)
        for k, matrix in enumerate(a):
            for factor, want in zip(factors, scipy.linalg.polar(matrix.numpy()), strict=True):
                np.testing.assert_allclose(factor[k].numpy(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_root_of_hermitian_matrix_is_scipys(dtype: torch.dtype) -> None:
    a = drawn(2, 3, 3, dtype=dtype)
    a = a @ a.mH + torch.eye(3, dtype=dtype)
    found = xf.device_get(xf.jit(SQRTH)(a))
    for root, matrix in zip(found, a, strict=True):
        want = scipy.linalg.sqrtm(matrix.numpy())
        np.testing.assert_allclose(root.numpy(), want, rtol=1e-12, atol=1e-12)


def test_polar_decomposition_of_a_wide_matrix_raises() -> None:
    with pytest.raises(RuntimeError, match="as many rows as columns, but got 2 by 3 matrices"):
        xf.jit(POLAR)(torch.ones(2, 3))
