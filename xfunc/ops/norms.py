"""Vector norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from xfunc.ops.registry import kernel

Tensor = torch.Tensor


@kernel("linalg_vector_norm")
def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    # torch_xla 2.9 treats every order as a finite power.
    shape = x.shape
    x = x.to(dtype) if dtype is not None else x
    size = x.abs() if x.ndim else x.abs().reshape(1)
    dims = tuple(dim) if dim else tuple(range(size.ndim))
    if ord in (math.inf, -math.inf):
        found = (torch.amax if ord > 0 else torch.amin)(size, dims, keepdim)
    elif ord == 0:
        found = (size != 0).to(size.dtype).sum(dims, keepdim)
    elif ord == 1:
        found = size.sum(dims, keepdim)
    elif ord == 2:
        found = size.square().sum(dims, keepdim).sqrt()
    else:
        found = size.pow(ord).sum(dims, keepdim).pow(1 / ord)
    return found if shape else found.reshape(())


def _norm(
    x: Tensor,
    p: float | None,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@kernel("norm.Scalar")
def norm(x: Tensor, p: float = 2) -> Tensor:
    return _norm(x, p)


@kernel("norm.ScalarOpt_dtype")
def norm_dtype(x: Tensor, p: float | None, *, dtype: torch.dtype) -> Tensor:
    return _norm(x, p, dtype=dtype)


@kernel("norm.ScalarOpt_dim")
def norm_dim(x: Tensor, p: float | None, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    return _norm(x, p, dim, keepdim)


@kernel("norm.ScalarOpt_dim_dtype")
def norm_dim_dtype(
    x: Tensor, p: float | None, dim: Sequence[int], keepdim: bool, *, dtype: torch.dtype
) -> Tensor:
    return _norm(x, p, dim, keepdim, dtype=dtype)
