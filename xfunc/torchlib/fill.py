"""Filling with a traced number, which torch would read: ``torch.full(shape, x)``, ``y.fill_(x)``.

NOTE [what torch.full refuses]: torch's argument parser, which runs before any mode, rejects
numbers that require grad. `fill` and `expand` are used when such a number is differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch

from xfunc.core import device
from xfunc.torchlib import functorch

Tensor = torch.Tensor


def _is_number(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and not value.ndim and value.device.type == device.TYPE


def _filled(value: Tensor, shape: Sequence[int], dtype: torch.dtype | None) -> Tensor:
    return value.to(dtype or value.dtype).expand(tuple(shape)).clone()


def _full(func: Callable[..., Tensor], typed_like: bool) -> Callable[..., Tensor]:
    def call(*args: Any, **kwargs: Any) -> Tensor:
        x, rest = (args[0], args[1:]) if typed_like else (None, args)
        given = dict(zip(("size", "fill_value"), rest, strict=False)) | kwargs
        value, size = given.get("fill_value"), given.get("size")
        where = torch.device(kwargs.get("device") or device.TYPE).type
        if not _is_number(value) or size is None or where != device.TYPE:
            return func(*args, **kwargs)
        shape = (size,) if isinstance(size, int) else size
        dtype = kwargs.get("dtype") or (x.dtype if isinstance(x, Tensor) else None)
        return _filled(value, shape, dtype)

    return call


def full_like(x: Tensor, fill_value: Any, **options: Any) -> Tensor:
    """``torch.full_like``."""
    if _is_number(fill_value):
        return _filled(fill_value, x.shape, options.get("dtype") or x.dtype)
    return torch.full_like(x, fill_value, **options)


def fill(x: Tensor, value: Tensor | float) -> Tensor:
    """``torch.fill``."""
    return _filled(value, x.shape, x.dtype) if _is_number(value) else torch.fill(x, value)


def fill_(x: Tensor, value: Tensor | float) -> Tensor:
    """``Tensor.fill_``."""
    return x.copy_(value) if _is_number(value) else x.fill_(value)


def _fits(value: Tensor | float, x: Tensor) -> TypeGuard[Tensor]:
    """Whether a traced number is converted to the dtype of `x`."""
    return _is_number(value) and (x.dtype is torch.bool or torch.can_cast(value.dtype, x.dtype))


def masked_fill(x: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """``torch.masked_fill``, for which torch 2.9's vmap runs one example at a time."""
    if not _fits(value, x):
        return torch.masked_fill(x, mask, value)
    return torch.where(mask, value.to(x.dtype), x)


def masked_fill_(x: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """``Tensor.masked_fill_``."""
    if not _fits(value, x):
        return x.masked_fill_(mask, value)
    return x.copy_(torch.where(mask, value.to(x.dtype), x))


def index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """``torch.index_fill``, whose rules for vmap read a value, or write into examples in place."""
    mapped = functorch.VMAP in functorch.levels()
    if index.ndim > 1 or not (_is_number(value) or (mapped and not isinstance(value, Tensor))):
        return torch.index_fill(x, dim, index, value)
    return index_filled(x, dim, index, value)


def index_filled(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """``torch.index_fill``, of arguments that it accepts, by other operations."""
    shape, x = x.shape, x if x.ndim else x.reshape(1)
    hit = torch.zeros(x.shape[dim], dtype=torch.int32, device=x.device)
    index = index.reshape(-1).long()
    hit = hit.scatter(0, torch.where(index < 0, index + x.shape[dim], index), 1)
    along = [-1 if d == dim % x.ndim else 1 for d in range(x.ndim)]
    filling = value.to(x.dtype) if isinstance(value, Tensor) else x.new_full((), value)
    return torch.where(hit.bool().reshape(along), filling, x).reshape(shape)


def index_fill_(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """``Tensor.index_fill_``."""
    return x.copy_(index_fill(x, dim, index, value))


def fill_diagonal_(x: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """``Tensor.fill_diagonal_``, which torch 2.9 writes with the strides of the whole array."""
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) > 1):
        return x.fill_diagonal_(fill_value, wrap)  # torch's error
    step = sum(math.prod(x.shape[d + 1 :]) for d in range(x.ndim))
    place = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    hit = place % max(step, 1) == 0
    if not wrap and x.ndim == 2:
        hit = hit & (place < x.shape[1] * step)
    return masked_fill_(x, hit, fill_value)


FILLING: dict[object, Callable[..., object]] = {
    torch.full: _full(torch.full, False),
    Tensor.new_full: _full(Tensor.new_full, True),
    torch.full_like: full_like,
    torch.fill: fill,
    torch.fill_: fill_,
    Tensor.fill_: fill_,
    torch.masked_fill: masked_fill,
    Tensor.masked_fill: masked_fill,
    Tensor.masked_fill_: masked_fill_,
    torch.index_fill: index_fill,
    Tensor.index_fill: index_fill,
    Tensor.index_fill_: index_fill_,
    Tensor.fill_diagonal_: fill_diagonal_,
}
"""For each torch function that fills, a version that also takes a traced number."""
