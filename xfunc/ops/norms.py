"""Vector norms and standard deviations.

NOTE [second derivatives at zero]: the slope of a norm is the unit vector, and jumps at zero. There
torch takes it for 0, and differentiated again its formula says 0 again: the second derivatives of
``norm(x) ** 2`` at zero, which are 2, were 0. So within nested differentiation the unit vector is 0
at zero, too, but has no finite derivative, so that no finite result is wrong. Forward mode over
another mode knows whether `x` changes at all: where it does not, as in the distance of a point from
itself, the unit vector does not change either. Reverse mode cannot know, and gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xfunc.ops.registry import composition, differentiable, is_twice, kernel
from xfunc.ops.single_evaluation import materialize
from xfunc.torchlib import functorch
from xfunc.torchlib.functorch import is_watched_at_this_level

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


# -- derivatives ----------------------------------------------------------------------------------


def _jump(x: Tensor) -> Tensor:
    """A slope that jumps at zero, for an `x` of zeros: see NOTE [second derivatives at zero]."""
    if functorch.GRAD in functorch.levels()[:-1] or functorch.innermost(x).requires_grad:
        return x.abs().sqrt()
    # Its derivative is 0 for a change of 0, and infinite for others.
    return torch.special.xlogy(x, torch.full((), math.inf, dtype=x.dtype, device=x.device))


def composed_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The norm of an order above one, with second derivatives at zero."""
    x = x if dtype is None else x.to(dtype)
    real = x.dtype.to_real() if x.is_complex() else x.dtype
    dims = tuple(d % x.ndim for d in dim) if dim and x.ndim else tuple(range(x.ndim))
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    paired = x.is_complex()
    if paired:
        x, dims = torch.view_as_real(x.resolve_conj()), (*dims, x.ndim)
    still = functorch.constant_here(x)
    parts = dims[-1:] if paired else ()
    paired = paired and ord != 2  # The norm of order 2 is that of all parts.
    magnitudes = torch.linalg.vector_norm(still, 2, -1, keepdim=True) if paired else still
    size = torch.linalg.vector_norm(magnitudes, ord, dims, keepdim=True)
    if ord == 2:
        slope = still
    elif paired:
        slope = still * torch.where(magnitudes == 0, 1, magnitudes).pow(ord - 2)
        at_zero = _jump(torch.where(magnitudes == 0, still, 0)) if ord < 2 else 0
        slope = torch.where(magnitudes == 0, at_zero, slope)
    else:
        slope = still.sgn() * still.abs().pow(ord - 1)
        if ord < 2:
            slope = torch.where(still == 0, _jump(torch.where(still == 0, still, 0)), slope)
    zero = size == 0
    slope = slope / torch.where(zero, 1, size).pow(ord - 1)
    slope = torch.where(zero, _jump(torch.where(zero, still, 0)), slope)
    change = torch.where(size.isfinite(), (slope * (x - still)).sum(dims, keepdim=True), 0)
    found = (size + change).to(real)
    return found.squeeze(parts if keepdim else dims)


def _old_norm(
    x: Tensor,
    p: float | None = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return composed_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


def _distance(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    return composed_norm(x - y, p)


def _differentiated(name: str, composed: Callable[..., Tensor] | None, place: int = 1) -> None:
    """Derivatives of a norm whose order is the argument at `place`.

    torch's derivative of an infinity norm compares the norm with the elements.
    """

    @differentiable(name)
    def run(rule: Callable[..., Tensor], *args: object, **named: object) -> Tensor:
        tensors = [a for a in args if isinstance(a, Tensor)]
        order = args[place] if len(args) > place else 2
        order = 2 if order is None else order
        if any(map(is_watched_at_this_level, tensors)) and isinstance(order, (int, float)):
            if order in (math.inf, -math.inf):
                args = tuple(materialize(a) if isinstance(a, Tensor) else a for a in args)
            elif composed and order > 1 and functorch.differentiates_twice(tensors):
                return composed(*args, **named)
        return rule(*args, **named)


_differentiated("linalg_vector_norm", composed_norm)
_differentiated("renorm", None)
_differentiated("dist", _distance, 2)
for _rest in ("Scalar", "ScalarOpt_dtype", "ScalarOpt_dim", "ScalarOpt_dim_dtype"):
    _differentiated(f"norm.{_rest}", _old_norm)


def _deviation(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    dims = tuple(dim) if dim else tuple(range(x.ndim))
    mean = x.mean(dims, keepdim=True)
    n = x.numel() // max(mean.numel(), 1) - (1 if correction is None else correction)
    norm = torch.linalg.vector_norm(x - mean, 2, dims, keepdim=keepdim)
    found = norm * (max(n, 0) ** -0.5 if n > 0 else math.nan)
    return found, mean if keepdim else mean.squeeze(dims)


@composition("std.correction", when=is_twice)
def std(x: Tensor, *args: Any, **options: Any) -> Tensor:
    return _deviation(x, *args, **options)[0]


@composition("std_mean.correction", when=is_twice)
def std_mean(x: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return _deviation(x, *args, **options)
