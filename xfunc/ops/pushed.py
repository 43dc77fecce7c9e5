"""Operations whose derivative in forward mode, as torch 2.9 has it, is not that of reverse mode.

NOTE [slopes at ties]: where two operands are equal, `fmax`, `clamp` with tensors and others have a
slope on either side. torch's formulas in forward mode take another one than those in reverse mode,
which are the ones that its users know. In `logcumsumexp` it divides by what is too large by 1e-12.
What is composed of others here has theirs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from xfunc.ops.reductions import scan_along
from xfunc.ops.registry import composition

Tensor = torch.Tensor


def _is_pushed(*args: Any, **kwargs: Any) -> bool:
    return any(
        isinstance(a, Tensor) and forward_ad.unpack_dual(a, level=0).tangent is not None
        for a in args
    )


def _alike(*tensors: Tensor) -> list[Tensor]:
    dtype = torch.result_type(*tensors[:2])
    for t in tensors[2:]:
        dtype = torch.promote_types(dtype, t.dtype)
    return [t.to(dtype) for t in tensors]


@composition("fmax", when=_is_pushed)
def fmax(x: Tensor, y: Tensor) -> Tensor:
    x, y = _alike(x, y)
    return torch.where((x >= y) | y.isnan(), x, y)


@composition("maximum", when=_is_pushed)
def maximum(x: Tensor, y: Tensor) -> Tensor:
    x, y = _alike(x, y)
    either = torch.where(x > y, x, x + y)  # NaN
    return torch.where(x == y, x / 2 + y / 2, torch.where(x < y, y, either))


@composition("minimum", when=_is_pushed)
def minimum(x: Tensor, y: Tensor) -> Tensor:
    x, y = _alike(x, y)
    either = torch.where(x < y, x, x + y)  # NaN
    return torch.where(x == y, x / 2 + y / 2, torch.where(x > y, y, either))


@composition("clamp.Tensor", when=_is_pushed)
def clamp(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    if min is None:
        assert max is not None
        x, max = _alike(x, max)
        return torch.where(x <= max, x, torch.where(x > max, max, torch.nan))
    if max is None:
        x, min = _alike(x, min)
        return torch.where(x >= min, x, torch.where(x < min, min, torch.nan))
    x, min, max = _alike(x, min, max)
    below, above = (x < min) & (min < max), (x > max) | (max < min)
    ends = torch.where(below, min, torch.where(above, max, torch.nan))
    same = torch.where((x < min) & (min == max), min.detach(), ends)  # nobody's slope
    return torch.where((x >= min) & (x <= max), x, same)


@composition("logcumsumexp", when=_is_pushed)
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    if not x.ndim or not x.numel():
        return x.clone()
    return scan_along(lambda a, b: (torch.logaddexp(a[0], b[0]),), (x,), dim)[0]
