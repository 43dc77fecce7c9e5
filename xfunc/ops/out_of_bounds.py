"""Derivatives of reads and writes at indices out of bounds.

NOTE [derivatives out of bounds]: a read out of bounds gives the last element (`x[i]` with
``i < -n`` the first), and a write is dropped: see `xfunc.torchlib.bounds`. torch's reverse-mode
formula for a read is a write, which would be dropped, and the one for a write is a read of the
last cotangent. So where a derivative is wanted, reads get the index that they are clamped to, and
values that are dropped are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from xfunc.ops.registry import differentiable
from xfunc.torchlib.functorch import is_watched_at_this_level
from xfunc.torchlib.indexing import put_by_mask

Tensor = torch.Tensor
Rule = Callable[..., Tensor]


def _is_inside(index: Tensor, n: int, negative: bool = False) -> Tensor:
    return (index >= (-n if negative else 0)) & (index < n)


def _within(index: Tensor, n: int) -> Tensor:
    """Indices of which negative ones are out of bounds, as they are clamped."""
    return torch.where(_is_inside(index, n), index, n - 1)


def _size(x: Tensor, dim: int) -> int:
    return x.shape[dim] if x.ndim else 1


@differentiable("gather")
def gather(rule: Rule, x: Tensor, dim: int, index: Tensor, **options: object) -> Tensor:
    if is_watched_at_this_level(x):
        index = _within(index, _size(x, dim))
    return rule(x, dim, index, **options)


@differentiable("index_select")
def index_select(rule: Rule, x: Tensor, dim: int, index: Tensor) -> Tensor:
    if is_watched_at_this_level(x):
        index = _within(index, _size(x, dim))
    return rule(x, dim, index)


@differentiable("embedding")
def embedding(
    rule: Rule,
    weight: Tensor,
    index: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if not is_watched_at_this_level(weight):
        return rule(weight, index, padding_idx, scale_grad_by_freq, sparse)
    n = weight.shape[0]
    index = _within(index, n)
    # torch's rule heeds the two options only in reverse mode, and the second one only in its first
    # derivative.
    rows = rule(weight, index, -1, False, sparse)
    if padding_idx >= 0:
        rows = torch.where((index == padding_idx).unsqueeze(-1), rows.detach(), rows)
    if scale_grad_by_freq:
        flat = index.reshape(-1)
        counts = torch.zeros(n, dtype=torch.int64, device=rows.device)
        counts = counts.index_add(0, flat, torch.ones_like(flat, dtype=torch.int64))
        share = rows / counts.index_select(0, flat).reshape(index.shape).unsqueeze(-1)
        change = torch.where(rows.isfinite(), share - share.detach(), share)
        rows = rows.detach() + change
    return rows


def _labelled(name: str) -> None:
    @differentiable(name)
    def run(
        rule: Callable[..., object],
        x: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignore_index: int,
    ) -> object:
        if is_watched_at_this_level(x):
            inside = _within(target, x.shape[1 if x.ndim > 1 else 0])
            target = torch.where(target == ignore_index, target, inside)
        return rule(x, target, weight, reduction, ignore_index)


for _name in ("nll_loss_forward", "nll_loss2d_forward"):
    _labelled(_name)


@differentiable("take")
def take(rule: Rule, x: Tensor, index: Tensor) -> Tensor:
    if is_watched_at_this_level(x):
        n = x.numel()
        index = _within(torch.where(index < 0, index + n, index), n)
    return rule(x, index)


@differentiable("index.Tensor")
def index(rule: Rule, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    if is_watched_at_this_level(x) and not _has_mask(indices):
        pairs = zip(indices, x.shape, strict=False)
        indices = [i if i is None or not n else i.clamp(-n, n - 1) for i, n in pairs]
    return rule(x, indices)


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _written(inside: Tensor, values: Tensor) -> Tensor:
    """The values, those that are dropped as constants."""
    return torch.where(inside, values, values.detach())


def scattered(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """The part of `src` that a scatter into `x` uses; what it drops is a constant."""
    if not is_watched_at_this_level(src) or index.ndim != src.ndim:
        return src
    src = src[tuple(slice(n) for n in index.shape)]
    return _written(_is_inside(index, _size(x, dim)), src)


def _scattering(name: str) -> None:
    @differentiable(name)
    def run(
        rule: Rule, x: Tensor, dim: int, index: Tensor, src: Tensor, **options: object
    ) -> Tensor:
        return rule(x, dim, index, scattered(x, dim, index, src), **options)


for _name in ("scatter.src", "scatter_add"):
    _scattering(_name)


def _by_index(name: str) -> None:
    @differentiable(name)
    def run(
        rule: Rule, x: Tensor, dim: int, index: Tensor, src: Tensor, **options: object
    ) -> Tensor:
        if is_watched_at_this_level(src):
            along = [-1 if d == dim % src.ndim else 1 for d in range(src.ndim)]
            inside = _is_inside(index, _size(x, dim)).reshape(along)
            src = _written(inside, src)
        return rule(x, dim, index, src, **options)


for _name in ("index_copy", "index_add"):
    _by_index(_name)


@differentiable("put")
def put(rule: Rule, x: Tensor, index: Tensor, values: Tensor, accumulate: bool = False) -> Tensor:
    if is_watched_at_this_level(values) and index.shape == values.shape:
        values = _written(_is_inside(index, x.numel(), negative=True), values)
    return rule(x, index, values, accumulate)


@differentiable("index_put")
def index_put(
    rule: Rule,
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    if is_watched_at_this_level(values):
        if not _has_mask(indices):
            values = _written(_is_inside_all(x, indices), values)
        elif (put := put_by_mask(x, indices, values, accumulate)) is not None:
            return put
    return rule(x, indices, values, accumulate)


def _is_inside_all(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """For the elements of ``x[indices]``, but for dimensions of 1: whether they are in bounds."""
    at = [k for k, i in enumerate(indices) if i is not None]
    inside = torch.ones((), dtype=torch.bool, device=x.device)
    for k, i in enumerate(indices):
        if i is not None:
            inside = inside & _is_inside(i, x.shape[k], negative=True)
    together = at[-1] - at[0] == len(at) - 1
    after = x.ndim - len(at) - (at[0] if together else 0)
    return inside.reshape(*inside.shape, *(1 for _ in range(after)))
