"""Functions that torch writes so that they read a tensor, without the reading.

A traced value has no data to read. Torch reads these for a check, for the number of results, or
for an end of an interval.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F

from xfunc.torchlib.losses import reduced

Tensor = torch.Tensor


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """``torch.combinations``, which selects by a mask."""
    if input.ndim != 1 or r < 0 or not isinstance(r, int):  # Torch raises its own error.
        return torch.combinations(input, r, with_replacement)
    make = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    chosen = torch.tensor([*make(range(len(input)), r)] if r else [], dtype=torch.int64)
    return input[chosen.reshape(-1, r) if r else chosen]


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """``torch.nn.functional.gaussian_nll_loss``; NaN where torch refuses a negative variance."""
    if isinstance(var, float) and var < 0:
        raise ValueError("var has negative entry/entries")
    if not isinstance(var, Tensor):
        var = var * torch.ones_like(input)
    if var.shape != input.shape:
        if input.shape[:-1] == var.shape:
            var = var.unsqueeze(-1)
        elif input.shape[:-1] != var.shape[:-1] or var.shape[-1] != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    least = torch.where(var < 0, math.nan, torch.full_like(var, eps))
    var = torch.where(var >= eps, var, var - var.detach() + least)  # The derivative passes.
    loss = 0.5 * (var.log() + (input - target).square() / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced(loss, reduction)


def _between(start: Any, end: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call is one for tensors without dimensions; torch takes numbers itself."""
    some = any(isinstance(x, Tensor) for x in (start, end))
    return some and not kwargs.get("requires_grad") and kwargs.keys() <= _TAKEN


_TAKEN = frozenset("steps base dtype device layout pin_memory requires_grad".split())


def linspace(start: Any, end: Any, steps: int, **kwargs: Any) -> Tensor:
    """``torch.linspace``; between tensors without dimensions it has derivatives, unlike torch's."""
    if not _between(start, end, kwargs):
        return torch.linspace(start, end, steps, **kwargs)
    dtype = kwargs.pop("dtype", None)
    ends = _on_one_device(start, end)
    if any(x.ndim for x in ends) or not isinstance(steps, int) or steps < 0:
        return torch.linspace(start, end, steps, dtype=dtype, **kwargs)  # Torch's own error.
    if dtype is None:
        default = torch.get_default_dtype()
        dtype = default.to_complex() if any(x.is_complex() for x in ends) else default
    wide = torch.complex128 if dtype.is_complex else torch.float64
    whole = not (dtype.is_complex or dtype.is_floating_point)
    start, end = (x.to(dtype).to(wide) if whole else x.to(wide) for x in ends)
    place = torch.arange(steps, device=start.device)
    step = (end - start) / max(steps - 1, 1)
    rising, falling = start + step * place, end - step * (steps - 1 - place)
    found = torch.where(place < max(steps // 2, 1), rising, falling)
    return found.to(dtype)


def _on_one_device(start: Any, end: Any) -> list[Tensor]:
    """Two ends, of which at least one is a tensor, as tensors."""
    device = next(x.device for x in (start, end) if isinstance(x, Tensor))
    return [torch.as_tensor(x, device=device) for x in (start, end)]


def logspace(start: Any, end: Any, steps: int, base: float = 10.0, **kwargs: Any) -> Tensor:
    """``torch.logspace``; see `linspace`."""
    if not _between(start, end, kwargs):
        return torch.logspace(start, end, steps, base, **kwargs)
    dtype = kwargs.pop("dtype", None)
    whole = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
    if whole and steps > 1:  # Torch takes a single power as it is.
        start, end = (x.to(dtype) for x in _on_one_device(start, end))
    powers = linspace(start, end, steps, dtype=torch.float64 if whole else dtype, **kwargs)
    found = torch.pow(base, powers)
    return found.to(dtype) if whole else found


READING = {
    torch.combinations: combinations,
    F.gaussian_nll_loss: gaussian_nll_loss,
    torch.linspace: linspace,
    torch.logspace: logspace,
}
"""The replacement for each of these torch functions."""
