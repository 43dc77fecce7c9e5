"""The dtypes that torch's arithmetic promotes to, and numbers as they are beside a tensor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

T = TypeVar("T")


def result_type(operands: Iterable[torch.Tensor | complex]) -> torch.dtype:
    """The dtype to which torch's arithmetic promotes any number of operands.

    Operands of a lower rank (arrays, then 0-d arrays, then numbers) count only if they are of a
    higher kind (bool, integer, floating, complex).
    """
    ranks: list[torch.dtype | None] = [None, None, None]
    for x in operands:
        if isinstance(x, torch.Tensor):
            rank, dtype = int(x.ndim == 0), x.dtype
        else:
            rank, dtype = 2, _NUMBERS[type(x)]()
        known = ranks[rank]
        ranks[rank] = dtype if known is None else torch.promote_types(known, dtype)
    found = [d for d in ranks if d is not None]
    return functools.reduce(_with_lower, found)


def _with_lower(dtype: torch.dtype, lower: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point and lower.is_complex:
        return torch.promote_types(dtype, torch.complex32)
    return torch.promote_types(dtype, lower) if _kind(lower) > _kind(dtype) else dtype


_NUMBERS: dict[type, Callable[[], torch.dtype]] = {
    bool: lambda: torch.bool,
    int: lambda: torch.int64,
    float: torch.get_default_dtype,
    complex: lambda: torch.promote_types(torch.get_default_dtype(), torch.complex32),
}


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype is not torch.bool)


def number(x: complex, dtype: torch.dtype) -> complex:
    """A number, rounded to a value that a dtype can represent."""
    with torch._C._DisableFuncTorch():  # Inside grad even a new tensor is wrapped.
        return torch.tensor(x, dtype=dtype, device="cpu").item()


def wrapped(x: T, dtype: torch.dtype) -> T | int | float:
    """A number as used with tensors of a dtype; anything else unchanged."""
    if type(x) is not int or not -(2**63) <= x < 2**64:  # torch accepts no others
        return x
    if dtype not in _NARROW:
        return float(x) if x >= 2**63 and dtype.is_floating_point else x
    first = torch.iinfo(dtype).min
    return (x - first) % (1 << 8 * dtype.itemsize) + first


_NARROW = (torch.int8, torch.uint8, torch.int16, torch.int32)
