"""Sorting, in torch's order of the floating-point numbers.

XLA sorts by a total order of their bits: -0.0 comes before 0.0, and a NaN with its sign bit set, as
x86 processors make them, before all numbers. In torch the zeros are equal and any NaN comes last.
"""

from __future__ import annotations

import torch

from xfunc.ops.elementwise import as_bits
from xfunc.ops.registry import Kernel, kernel, original, wrap

Tensor = torch.Tensor


def _with_one_nan(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), torch.nan, x)


def _key(x: Tensor) -> Tensor:
    """Numbers that XLA orders as torch orders `x`."""
    bits = as_bits(x)
    # Not ``x == 0``: XLA's arithmetic on the CPU takes subnormal numbers for zeros too.
    return _with_one_nan(torch.where(bits == torch.iinfo(bits.dtype).min, 0, x))


@kernel("sort.stable")
def sort_stable(
    x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    sort_ = original("sort.stable")
    if not x.is_floating_point():
        return sort_(x, stable=stable, dim=dim, descending=descending)
    _, places = sort_(_key(x), stable=stable, dim=dim, descending=descending)
    return x.gather(dim, places), places


@kernel("sort")
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return sort_stable(x, stable=False, dim=dim, descending=descending)


def _ranked(name: str, function: Kernel) -> Kernel:
    def run(x: Tensor, *args: object, **kwargs: object) -> object:
        return function(_with_one_nan(x) if x.is_floating_point() else x, *args, **kwargs)

    return run


for _name in ("topk", "kthvalue"):
    wrap(_name, _ranked, lambda x, *rest: not x.is_floating_point())
