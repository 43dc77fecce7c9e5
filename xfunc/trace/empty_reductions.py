"""Reductions of arrays without elements, and of arrays without dimensions.

In torch each operation checks for these itself: the maximum of nothing is refused, its sum is zero,
its median NaN. The answer needs no data, so torch itself computes it on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from xfunc.torchlib.values import tensors_in
from xfunc.trace.literals import literal

Tensor = torch.Tensor

_REDUCTIONS = """
    sum nansum mean nanmean prod all any amax amin max min aminmax argmax argmin std var std_mean
    var_mean count_nonzero logsumexp median nanmedian mode kthvalue quantile nanquantile
    cumsum cumprod logcumsumexp cummax cummin norm
""".split()
_CHECKED = frozenset(
    getattr(place, name) for name in _REDUCTIONS for place in (torch, torch.Tensor)
    if hasattr(place, name)
) | frozenset((torch.linalg.vector_norm, torch.linalg.norm, torch.linalg.matrix_norm))  # fmt: skip

_QUOTIENTS = frozenset(
    getattr(place, name) for name in ("mean", "nanmean", "std") for place in (torch, torch.Tensor)
)


def is_reduction(func: object) -> bool:
    """Whether `reduce` handles calls of a function."""
    return func in _CHECKED


def reduce(
    func: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """The result of a reduction of nothing, or torch's error; NotImplemented if it needs data."""
    x = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("input")
    if not isinstance(x, Tensor) or (x.ndim and x.numel()) or "out" in kwargs:
        return NotImplemented
    if sum(1 for _ in tensors_in(args, dict(kwargs))) > 1:
        return NotImplemented
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        like = torch.zeros(x.shape, dtype=x.dtype)
        rest = args[1:] if args else ()
        found = func(like, *rest, **{k: v for k, v in kwargs.items() if v is not x})
        if not x.ndim:
            return NotImplemented
        if not isinstance(found, Tensor):
            return type(found)(map(literal, found))
        result = literal(found)
    if func not in _QUOTIENTS:
        return result
    return result + x.sum().to(result.dtype) * torch.nan  # The tangent is 0 / 0, like the result.
