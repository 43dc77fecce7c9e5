"""Reductions along dimensions, and cumulative ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._prims_common import canonicalize_dims, validate_no_repeating_dims

from xfunc.graph import build
from xfunc.graph.build import Window
from xfunc.graph.node import Node
from xfunc.ops.cumulative import accumulated
from xfunc.ops.emit import instruction
from xfunc.ops.registry import kernel
from xfunc.ops.single_evaluation import materialize
from xfunc.rules.reductions import highest, lowest

Tensor = torch.Tensor
Tensors = tuple[Tensor, ...]


def _dims(x: Tensor, dim: Sequence[int]) -> tuple[int, ...]:
    """The dimensions, checked and counted from the front; all of them for ()."""
    dims = canonicalize_dims(x.ndim, tuple(dim))
    validate_no_repeating_dims(dims)
    return dims if dims and x.ndim else tuple(range(x.ndim))


def first_place(x: Tensor, value: Tensor, dim: int) -> Tensor:
    """The first position of a value (of size 1 along `dim`) or of a NaN; `x` is `materialize`."""
    hit = (x == value) | x.isnan() if x.is_floating_point() else x == value
    shape = [-1 if d == dim else 1 for d in range(x.ndim)]
    places = torch.arange(x.shape[dim], device=x.device).reshape(shape)
    return torch.where(hit, places, x.shape[dim]).amin(dim, keepdim=True)


def _along(x: Tensor, dim: int, keepdim: bool, largest: bool) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    dim %= x.ndim
    if x.dtype is torch.bool:
        value, place = _along(x.to(torch.int32), dim, keepdim, largest)
        return value.to(torch.bool), place
    x = materialize(x)
    value = (torch.amax if largest else torch.amin)(x, dim, keepdim=True)
    place = first_place(x, value, dim)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


@kernel("max.dim")
def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _along(x, dim, keepdim, True)


@kernel("min.dim")
def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _along(x, dim, keepdim, False)


def _arg(x: Tensor, dim: int | None, keepdim: bool, largest: bool) -> Tensor:
    if dim is not None:
        return _along(x, dim, keepdim, largest)[1]
    place = _along(x.reshape(-1), 0, False, largest)[1]
    return place.reshape([1] * x.ndim) if keepdim else place


@kernel("argmax")
def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(x, dim, keepdim, True)


@kernel("argmin")
def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _arg(x, dim, keepdim, False)


@kernel("aminmax")
def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = () if dim is None else (dim,)
    return torch.amin(x, dims, keepdim), torch.amax(x, dims, keepdim)


@kernel("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(x: Tensor, dim: Sequence[int] | int | None = None) -> Tensor:
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    return (x != 0).to(torch.int64).sum(_dims(x, dims) or None)


@kernel("nansum")
def nansum(
    x: Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if x.is_floating_point():
        x = torch.where(x.isnan(), 0, x)
    return torch.sum(x, tuple(dim or ()), keepdim, dtype=dtype)


@kernel("cumprod")
def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype is None and not (x.is_floating_point() or x.is_complex()):
        dtype = torch.int64
    x = x.to(dtype or x.dtype)
    return accumulated(_multiplied, (x,), dim)[0]


def _multiplied(a: Tensors, b: Tensors) -> Tensors:
    return (a[0] * b[0],)


def _extremes(x: Tensor, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    if not x.ndim or not x.numel():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    dim %= x.ndim
    keys = materialize(x.to(torch.int32) if x.dtype is torch.bool else x)
    start = (lowest if largest else highest)(keys.dtype)
    opcode = "maximum" if largest else "minimum"
    best = instruction(_prefixes, keys, dim=dim, opcode=opcode, start=start)
    # The last of equal elements wins, and so does the last NaN.
    hit = (keys == best) | keys.isnan() if x.is_floating_point() else keys == best
    shape = [-1 if d == dim else 1 for d in range(x.ndim)]
    places = torch.where(hit, torch.arange(x.shape[dim], device=x.device).reshape(shape), 0)
    places = instruction(_prefixes, places, dim=dim, opcode="maximum", start=0)
    return x.gather(dim, places), places  # `best` may be 0.0 where -0.0 has won.


def _prefixes(x: Node, *, dim: int, opcode: str, start: float) -> Node:
    sizes = [n if d == dim else 1 for d, n in enumerate(x.dims)]
    return build.reduce_window(opcode, x, start, tuple([Window(n, low=n - 1) for n in sizes]))


@kernel("cummax")
def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremes(x, dim, True)


@kernel("cummin")
def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extremes(x, dim, False)


@kernel("logcumsumexp", "_logcumsumexp")
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    if not x.ndim or not x.numel():
        return x.clone()
    return accumulated(_logarithms_added, (x,), dim)[0]


def _logarithms_added(a: Tensors, b: Tensors) -> Tensors:
    return (torch.logaddexp(a[0], b[0]),)


def _middle(x: Tensor, dim: int, keepdim: bool, skip_nan: bool) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    value, place = torch.sort(x, dim=dim, stable=True)  # NaN comes last
    n = x.shape[dim]
    at = _half(n - 1, value.narrow(dim, 0, 1))
    if x.is_floating_point():
        nans = x.isnan().sum(dim, keepdim=True)
        at = (n - nans - 1).clamp(min=0) // 2 if skip_nan else torch.where(nans > 0, n - nans, at)
    value, place = value.gather(dim, at), place.gather(dim, at)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))


def _half(n: int, like: Tensor) -> Tensor:
    """``n // 2``, computed on the device: with dynamic shapes, HLO holds `n` itself."""
    return torch.full_like(like, n, dtype=torch.int64) // 2


@kernel("median.dim")
def median_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _middle(x, dim, keepdim, False)


@kernel("nanmedian.dim")
def nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _middle(x, dim, keepdim, True)


@kernel("median")
def median(x: Tensor) -> Tensor:
    return _middle(x.reshape(-1), 0, False, False)[0]


@kernel("nanmedian")
def nanmedian(x: Tensor) -> Tensor:
    return _middle(x.reshape(-1), 0, False, True)[0]


@kernel("mode")
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    dim %= x.ndim
    value, place = torch.sort(x, dim=dim, stable=True)
    n = x.shape[dim]
    first = torch.searchsorted(
        value.movedim(dim, -1).contiguous(), value.movedim(dim, -1).contiguous()
    )
    shape = [-1 if d == dim else 1 for d in range(x.ndim)]
    run = torch.arange(n, device=x.device).reshape(shape) - first.movedim(-1, dim)
    at = torch.argmax(run, dim, keepdim=True)  # the end of the first run of the greatest length
    value, place = value.gather(dim, at), place.gather(dim, at)
    return (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))
