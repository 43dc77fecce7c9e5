"""Scattered products and embedding bags, with derivatives of every order and mode.

torch 2.9 has no second derivative of a scattered product, and treats its forward-mode derivative
as zero; for `index_reduce` and embedding bags it has no forward-mode derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from xfunc.errors import UnsupportedOpError, fail
from xfunc.ops.cumulative import scan_along
from xfunc.ops.out_of_bounds import scattered
from xfunc.ops.registry import composition, differentiable, is_pushed
from xfunc.ops.single_evaluation import materialize
from xfunc.torchlib import functorch
from xfunc.torchlib.functorch import is_watched_at_this_level

Tensor = torch.Tensor


def _product(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return torch.where(a[1] == b[1], a[0] * b[0], b[0]), b[1]


@differentiable("scatter_reduce.two")
def scatter_reduce(
    rule: Callable[..., Tensor],
    x: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    src = scattered(x, dim, index, src)
    if is_watched_at_this_level(x) or is_watched_at_this_level(src):
        if reduce == "prod" and index.numel():
            return _scattered_product(x, dim, index, src, include_self)
        if reduce in ("amax", "amin"):
            if not include_self:
                # torch's rules divide a derivative by the number of equal extrema, and count an
                # element of `x` that is left out.
                left_out = torch.zeros_like(x, dtype=torch.bool).scatter(dim, index, True)
                x = x.masked_fill(left_out, -math.inf if reduce == "amax" else math.inf)
                include_self = True
            x, src = materialize(x), materialize(src)
    return rule(x, dim, index, src, reduce, include_self=include_self)


def _scattered_product(
    x: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool
) -> Tensor:
    shape = x.shape
    x, index, src = (v if v.ndim else v.reshape(1) for v in (x, index, src))
    src = src[tuple(slice(n) for n in index.shape)]
    if functorch.differentiates_twice((x, src)) or any(map(is_pushed, (x, src))):
        return _sorted_product(x, dim, index, src, include_self).reshape(shape)

    def value(x: Tensor, index: Tensor, src: Tensor) -> Tensor:
        return torch.scatter_reduce(x, dim, index, src, "prod", include_self=include_self)

    def gradient(kept: Sequence[Tensor], ct: Tensor) -> Sequence[Tensor | None]:
        x, index, src, found = kept
        if functorch.is_recorded(x, src):
            again = _sorted_product(x, dim, index, src, include_self)
            wrt = [t for t in (x, src) if t.requires_grad]
            each = iter(torch.autograd.grad(again, wrt, ct, create_graph=True))
            by_x, by_src = (next(each) if t.requires_grad else None for t in (x, src))
            return by_x, None, by_src
        others = value(torch.ones_like(x), index, src)
        if not include_self:
            others = torch.ones_like(x).scatter(dim, index, 0)
        # The product without a zero, if it is the only one; torch does likewise.
        zero = src == 0
        zeros = torch.zeros_like(x, dtype=torch.int32).scatter_add(dim, index, zero.int())
        only = zero & (zeros.gather(dim, index) == 1)
        without = value(x, index, torch.where(only, 1, src)) * ct
        rest = (found * ct).gather(dim, index) / torch.where(zero, 1, src)
        return ct * others, None, torch.where(only, without.gather(dim, index), rest)

    return functorch.with_gradient(value, gradient, x, index, src).reshape(shape)


def _sorted_product(x: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool) -> Tensor:
    """Running products over the sources, sorted by index: no division, so zeros are fine.

    Its derivatives of all orders are right, and take long to compile: see NOTE [running operations]
    in `xfunc.ops.cumulative`.
    """
    order = torch.argsort(index, dim=dim, stable=True)
    place, value = index.gather(dim, order), src.gather(dim, order)
    value, _ = scan_along(_product, (value, place), dim)
    n = place.shape[dim]
    later = place.narrow(dim, min(1, n - 1), max(n - 1, 1))
    last = torch.ones_like(place, dtype=torch.bool)
    if n > 1:
        ends = later != place.narrow(dim, 0, n - 1)
        last = torch.cat([ends, last.narrow(dim, 0, 1)], dim)
    total = torch.zeros_like(x).scatter_add(dim, place, torch.where(last, value, 0))
    found = torch.zeros_like(x, dtype=torch.int32).scatter_add(dim, place, last.to(torch.int32)) > 0
    if include_self:
        return torch.where(found, total * x, x)
    return torch.where(found, total, x)


@composition("index_reduce")
def index_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    shape = x.shape
    x, src = (v if v.ndim else v.reshape(1) for v in (x, src))
    along = [-1 if d == dim % x.ndim else 1 for d in range(x.ndim)]
    places = index.reshape(along).expand(src.shape)
    kind = reduce.replace("mul", "prod")
    return torch.scatter_reduce(x, dim, places, src, kind, include_self=include_self).reshape(shape)


_MODES = ("sum", "mean", "max")


@composition("_embedding_bag_forward_only", "_embedding_bag")
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if scale_grad_by_freq:
        fail(
            UnsupportedOpError,
            "embedding_bag cannot scale gradients by the frequency of an index in a program",
            "leave out scale_grad_by_freq, and scale the gradients by torch.bincount outside.",
        )
    bags, n = offsets.shape[0] - include_last_offset, indices.shape[0]
    places = torch.arange(n, device=weight.device)
    bag = torch.searchsorted(offsets[:bags].long(), places, right=True) - 1
    counts = indices != padding_idx if padding_idx >= 0 else torch.ones_like(indices).bool()
    counts = counts & (bag >= 0) & (places < offsets[-1]) if include_last_offset else counts
    bag = bag.clamp(min=0)
    size = torch.zeros(bags, dtype=torch.int64, device=weight.device)
    size = size.index_add(0, bag, counts.long())
    rows = weight.index_select(0, indices.long().reshape(-1))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    zeros = torch.zeros(bags, weight.shape[1], dtype=weight.dtype, device=weight.device)
    if _MODES[mode] != "max":
        found = zeros.index_add(0, bag, torch.where(counts[:, None], rows, 0))
        if _MODES[mode] == "mean":
            found = found / size.clamp(min=1)[:, None]
        return found, bag.to(offsets.dtype), size.to(offsets.dtype), size.to(offsets.dtype)
    # The first of equal maxima gets the derivative.
    spread = bag[:, None].expand(rows.shape)
    fixed = materialize(torch.where(counts[:, None], rows.detach(), -torch.inf))
    most = (zeros - torch.inf).scatter_reduce(0, spread, fixed, "amax")
    hit = (fixed == most.index_select(0, bag)) & counts[:, None]
    nowhere = torch.full_like(zeros, n, dtype=torch.int64)
    first = nowhere.scatter_reduce(0, spread, torch.where(hit, places[:, None], n), "amin")
    chosen = first.clamp(max=max(n - 1, 0))
    found = torch.where(size[:, None] > 0, rows.gather(0, chosen) if n else zeros, 0)
    which = indices.index_select(0, chosen.reshape(-1)).reshape(chosen.shape) if n else chosen
    return found, bag.to(offsets.dtype), size.to(offsets.dtype), which
