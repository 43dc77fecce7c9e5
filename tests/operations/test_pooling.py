"""Pooling: the places of maxima, which are where gradients go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf

NAN = float("nan")
X = torch.tensor([[[1.0, NAN, 3, 2, NAN, 1], [NAN, NAN, -1, -1, NAN, NAN]]])


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool1d(x, 2, return_indices=True),
        lambda x: F.max_pool1d(x, 3, 1, 1, return_indices=True),
        lambda x: F.max_pool1d(x, 2, 2, 0, 2, return_indices=True),
        lambda x: F.max_pool2d(x, 2, 1, 1, return_indices=True),
        lambda x: F.max_pool2d(x, (2, 3), ceil_mode=True, return_indices=True),
        lambda x: F.max_pool3d(x[None], (1, 2, 2), return_indices=True),
        lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True),
        lambda x: F.adaptive_max_pool2d(x, (1, 4), return_indices=True),
        lambda x: F.adaptive_max_pool3d(x[None], (1, 1, 4), return_indices=True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_last_nan_of_a_window_is_its_maximum(
    pool: Callable[[Tensor], Any], dtype: torch.dtype
) -> None:
    x = X.to(dtype)
    found = xf.device_get(xf.jit(pool)(x))
    torch.testing.assert_close(found, pool(x), equal_nan=True, rtol=0, atol=0)

    def total(x: Tensor) -> Tensor:
        values = pool(x)[0]
        return (values.nan_to_num(0.5) * 2 + values).sum()

    leaf = x.clone().requires_grad_()
    total(leaf).backward()
    assert leaf.grad is not None
    torch.testing.assert_close(xf.grad(total)(x).cpu(), leaf.grad, rtol=0, atol=0)
