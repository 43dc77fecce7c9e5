"""Reading and writing at indices, and finding indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from xfunc.core.avals import short
from xfunc.errors import UnsupportedOpError, fail
from xfunc.ops.emit import halvings
from xfunc.ops.registry import batched, composition, defunctionalized, kernel, original
from xfunc.torchlib.fill import index_filled
from xfunc.torchlib.indexing import put_by_mask

Tensor = torch.Tensor


@kernel("index_fill.int_Scalar")
@composition("index_fill.int_Tensor")
def index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    if isinstance(value, Tensor) and value.ndim:
        raise RuntimeError(
            "index_fill_ only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    return index_filled(x, dim, index, value)


# The identity of each reduction.
def _identity(dtype: torch.dtype, reduce: str) -> float | int | bool:
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype is torch.bool:
        return reduce == "amin"
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


@kernel("scatter_reduce.two")
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    shape = x.shape
    x, index, src = (v if v.ndim else v.reshape(1) for v in (x, index, src))
    src = src[tuple(slice(n) for n in index.shape)]
    if not include_self:
        x = x.scatter(dim, index, _identity(x.dtype, reduce))
    inner = original("scatter_reduce.two")
    if reduce != "mean":
        return inner(x, dim, index, src, reduce).reshape(shape)
    total = x.scatter_add(dim, index, src)
    count = torch.ones_like(x) if include_self else torch.ones_like(x).scatter(dim, index, 0)
    count = count.scatter_add(dim, index, torch.ones_like(src)).clamp(min=1)
    whole = not x.is_floating_point()
    found = torch.div(total, count, rounding_mode="floor" if whole else None)
    return found.to(x.dtype).reshape(shape)


@kernel("scatter.reduce")
def scatter_src(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    return torch.scatter_reduce(x, dim, index, src, _REDUCE[reduce])


@kernel("scatter.value_reduce")
def scatter_value(x: Tensor, dim: int, index: Tensor, value: float, *, reduce: str) -> Tensor:
    src = torch.full(index.shape, value, dtype=x.dtype, device=x.device)
    return torch.scatter_reduce(x, dim, index, src, _REDUCE[reduce])


_REDUCE = {"add": "sum", "multiply": "prod"}


def _long(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [i.long() if i is not None and i.dtype is torch.int32 else i for i in indices]


@kernel("index_put")
def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    indices = _long(indices)
    (mask, *others) = [i for i in indices if i is not None]
    loses_part = values.is_complex() and not x.is_complex()
    if mask.dtype is torch.bool and values.numel() == 1 and not loses_part:
        values = values.to(x.dtype)  # as torch does, for a mask
    if values.dtype != x.dtype:
        if not values.numel() or any(i is not None and not i.numel() for i in indices):
            return x.clone()  # torch requires equal dtypes only if there is something to write
        fail(
            RuntimeError,
            f"the values to put into {short(x)} have another dtype ({short(values)})",
            "convert it: x[i] = y.to(x.dtype).",
        )
    if mask.dtype is torch.bool and not others:
        before = next(k for k, i in enumerate(indices) if i is not None)
        after = x.ndim - before - mask.ndim
        for k, n in enumerate(mask.shape):
            if after >= 0 and n != x.shape[before + k]:
                raise IndexError(
                    f"The shape of the mask {[*mask.shape]} at index {k} does not match the shape "
                    f"of the indexed tensor {[*x.shape]} at index {before + k}"
                )
        put = put_by_mask(x, indices, values, accumulate)
        if put is not None:
            return put
    return defunctionalized(_index_put, x, list(indices), values, accumulate)


def _index_put(x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool) -> Tensor:
    return torch.ops.aten.index_put_.default(x.clone(), indices, values, accumulate)


@kernel("masked_scatter")
@batched("masked_scatter")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        got = f"but got mask with dtype {mask.dtype}"
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, {got}")
    x, mask = torch.broadcast_tensors(x, mask)
    if not x.numel() or not source.numel():
        return x.clone()
    place = (mask.reshape(-1).long().cumsum(0) - 1).clamp(0, source.numel() - 1)
    found = source.reshape(-1).index_select(0, place).reshape(x.shape)
    return torch.where(mask, found, x)


@kernel("masked_scatter_backward")
@batched("masked_scatter_backward")
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    n, mask = math.prod(sizes), mask.expand(grad.shape).reshape(-1)
    place = torch.where(mask, mask.long().cumsum(0) - 1, n).clamp(max=n)
    out = torch.zeros(n + 1, dtype=grad.dtype, device=grad.device)
    return out.scatter_add(0, place, grad.reshape(-1))[:n].reshape(tuple(sizes))


@kernel("nonzero_static")
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    hit = (x != 0).reshape(-1)
    place = torch.where(hit, hit.long().cumsum(0) - 1, size).clamp(max=size)
    found = torch.full((size + 1,), -1, dtype=torch.int64, device=x.device)
    flat = found.scatter(0, place, torch.arange(x.numel(), device=x.device))[:size]
    columns = []
    rest = flat
    for n in reversed(x.shape):
        columns.append(torch.where(flat < 0, fill_value, rest % n))
        rest = rest // n
    if not columns:
        return torch.zeros(size, 0, dtype=torch.int64, device=x.device)
    return torch.stack(columns[::-1], 1)


@kernel("repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    if output_size is None:
        fail(
            UnsupportedOpError,
            "the shape of the result of repeat_interleave depends on data",
            "give `output_size`, the sum of the repeats.",
        )
    ends = repeats.cumsum(0)
    return torch.searchsorted(ends, torch.arange(output_size, device=repeats.device), right=True)


@kernel("searchsorted.Tensor")
def searchsorted(
    edges: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    if not edges.ndim:
        raise RuntimeError(
            "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 "
            "dimension"
        )
    if sorter is not None:
        edges = edges.gather(-1, sorter)
    right = right or side == "right"
    edges, values = _alike(edges, values)
    n, shape = edges.shape[-1], values.shape
    if edges.ndim == 1:
        values = values.reshape(-1)
    low, high = (torch.full_like(values, k, dtype=torch.int64) for k in (0, n))
    low, _ = halvings(_bisected, n, (low, high), (edges, values), right=right)
    return low.reshape(shape).to(torch.int32 if out_int32 else torch.int64)


def _bisected(
    n: Tensor, low: Tensor, high: Tensor, edges: Tensor, values: Tensor, *, right: bool
) -> tuple[Tensor, Tensor]:
    """Half of each range, in which the place of a value is."""
    middle = (low + high) // 2
    there = edges.gather(-1, middle.clamp(max=edges.shape[-1] - 1))
    after = ~(there > values) if right else ~(there >= values)
    if edges.is_floating_point():  # NaN comes last.
        number, last = ~there.isnan(), values.isnan()
        after = after & number | (last if right else last & number)
    after = after & (low < high)
    return torch.where(after, middle + 1, low), torch.where(after, high, middle)


def _alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.to(dtype), b.to(dtype)


@kernel("searchsorted.Scalar")
def searchsorted_scalar(
    edges: Tensor,
    value: float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    values = torch.full((), value, device=edges.device)
    return torch.searchsorted(
        edges, values, out_int32=out_int32, right=right, side=side, sorter=sorter
    )


@kernel("bucketize.Tensor", "bucketize.Scalar")
def bucketize(
    values: Tensor | float, edges: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    if edges.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({edges.ndim})")
    values = values if isinstance(values, Tensor) else torch.full((), values, device=edges.device)
    return torch.searchsorted(edges, values, out_int32=out_int32, right=right)


def _counted(x: Tensor, edges: Tensor, weight: Tensor | None) -> Tensor:
    """How many elements lie between edges; the last bin includes its upper edge."""
    x, bins = x.reshape(-1), edges.shape[0] - 1
    inside = (x >= edges[0]) & (x <= edges[-1])
    place = (torch.searchsorted(edges, x, right=True) - 1).clamp(0, bins - 1)
    weight = torch.ones_like(x) if weight is None else weight.reshape(-1)
    out = torch.zeros(bins, dtype=x.dtype, device=x.device)
    return out.scatter_add(0, place, torch.where(inside, weight, 0))


@kernel("histc")
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    low, high = _ends(x, None if min == max else (min, max), 1.0)
    flat = x.reshape(-1)
    place = ((flat - low) * bins / (high - low)).floor().clamp(0, bins - 1).nan_to_num(0).long()
    inside = (flat >= low) & (flat <= high)
    out = torch.zeros(bins, dtype=x.dtype, device=x.device)
    return out.scatter_add(0, place, inside.to(x.dtype))


def _ends(x: Tensor, given: Sequence[float] | None, margin: float) -> tuple[Tensor, Tensor]:
    if given is not None:
        low, high = (torch.full((), v, dtype=x.dtype, device=x.device) for v in given)
    elif not x.numel():
        low, high = x.new_zeros(()), x.new_ones(())
    else:
        low, high = x.amin(), x.amax()
    same = low == high
    return torch.where(same, low - margin, low), torch.where(same, high + margin, high)


@kernel("histogram.bin_ct")
def histogram(
    x: Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    low, high = _ends(x, range, 0.5)
    steps = torch.arange(bins + 1, dtype=x.dtype, device=x.device) / bins
    edges = torch.where(steps < 0.5, low + (high - low) * steps, high - (high - low) * (1 - steps))
    return histogram_edges(x, edges, weight=weight, density=density)


@kernel("histogram.bins_tensor")
def histogram_edges(
    x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False
) -> tuple[Tensor, Tensor]:
    found = _counted(x, bins, weight)
    if density:
        found = found / (found.sum() * (bins[1:] - bins[:-1]))
    return found, bins


@kernel("take")
def take(x: Tensor, index: Tensor) -> Tensor:
    flat, places = x.reshape(-1), index.reshape(-1)
    places = torch.where(places < 0, places + flat.shape[0], places)
    return flat.index_select(0, places).reshape(index.shape)


@kernel("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(
    x: Tensor | float, among: Tensor | float, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    shape = x.shape if isinstance(x, Tensor) else ()
    first = x if isinstance(x, Tensor) else among
    assert isinstance(first, Tensor)
    x, among = (
        v.reshape(-1) if isinstance(v, Tensor) else torch.full((1,), v, device=first.device)
        for v in (x, among)
    )
    if not among.numel():
        return torch.full(shape, invert, device=x.device)
    edges = torch.sort(among)[0]
    x, edges = _alike(x, edges)
    place = torch.searchsorted(edges, x).clamp(max=edges.shape[0] - 1)
    return ((edges[place] == x) != invert).reshape(shape)
