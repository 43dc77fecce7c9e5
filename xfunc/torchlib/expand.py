"""``x.expand(shape)`` and the like: where nothing is expanded, a writable view.

torch's functionalisation writes to the result of `expand` by adding the difference to the shared
element, even if no element is shared: infinite values become NaN. And when it writes to the windows
of ``x.unfold(dim, size, step)``, it puts zeros outside all windows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from xfunc.torchlib.values import tensors_in

Tensor = torch.Tensor
Tensors = tuple[Tensor, ...] | list[Tensor]


def _unexpanded(x: Tensor, out: Tensor) -> Tensor:
    if out.numel() != x.numel() or not x.numel():
        return out
    return x.view(out.shape)


def _one(func: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        return _unexpanded(x, func(x, *args, **kwargs))

    return call


def _each(func: Callable[..., Tensors]) -> Callable[..., Tensors]:
    def call(*args: object, **kwargs: object) -> Tensors:
        outs = func(*args, **kwargs)
        return type(outs)(map(_unexpanded, tensors_in(args, kwargs), outs))

    return call


def has_rest(length: int, size: int, step: int) -> bool:
    """Whether disjoint windows of several elements stop short of another full step."""
    n = (length - size) // step + 1
    return step > size > 1 and n > 1 and n * step > length


def _unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """``Tensor.unfold``, as views that share no elements where possible."""
    out = x.unfold(dimension, size, step)
    if not x.ndim or step < size or not out.numel():
        return out
    dim = dimension % x.ndim
    if has_rest(x.shape[dim], size, step):
        return out
    n = out.shape[dim]
    if n == 1:
        return x.narrow(dim, 0, size).unsqueeze(-1).transpose(dim, -1)
    if size == 1:
        return x[(*(slice(None),) * dim, slice(None, None, step))].unsqueeze(-1)
    windows = x.narrow(dim, 0, n * step).unflatten(dim, (n, step)).narrow(dim + 1, 0, size)
    return windows.movedim(dim + 1, -1)


_ONE = (torch.Tensor.expand, torch.Tensor.expand_as, torch.Tensor.broadcast_to, torch.broadcast_to)
ONE_FOR_EACH = frozenset((torch.broadcast_tensors, torch.meshgrid))
"""Functions that return an expanded tensor for each argument."""
EXPANDING = ONE_FOR_EACH | frozenset(_ONE)
"""All functions that expand."""

EXPANSIONS: dict[object, Callable[..., object]] = {
    **{f: _one(f) for f in _ONE},
    **{f: _each(f) for f in ONE_FOR_EACH},
    Tensor.unfold: _unfold,
}
"""The replacement for each such function."""
