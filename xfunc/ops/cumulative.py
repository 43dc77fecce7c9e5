"""All partial results of an associative operation.

NOTE [running operations]: a tree of prefixes is about ``2 log2(n)`` copies of the operation, each
of them code: of 10,000 elements, 26. XLA takes seconds for so many logarithms. So long arrays are
cut into runs of about the root of n elements. One loop goes through all runs at once, another
through their last elements, and each run is combined with what comes before it: three copies,
work that is linear in n, and about ``2 sqrt(n)`` steps.
"""

from __future__ import annotations

import math

import torch

from xfunc.graph.composite import running_name
from xfunc.ops.emit import Combine, Tensors, called, running
from xfunc.torchlib.prefixes import prefixes

Tensor = torch.Tensor

_SHORT = 16  # a tree of so few elements is compiled as fast, and runs faster


def scan_along(combine: Combine, x: Tensors, dim: int) -> Tensors:
    """All partial results of an associative operation on tuples of tensors; differentiable."""
    moved = prefixes(lambda a, b: combine(tuple(a), tuple(b)), [v.movedim(dim, 0) for v in x])
    return tuple(v.movedim(0, dim) for v in moved)


def accumulated(combine: Combine, x: Tensors, dim: int) -> Tensors:
    """`scan_along` for a kernel, without derivatives: see NOTE [running operations].

    Args:
        combine: a module-level function of two tuples of tensors, element by element.
        x: tensors on the device, of one shape.
        dim: the dimension.
    """
    name = running_name(combine.__name__.strip("_"), dim % x[0].ndim)
    return called(name, _accumulated, *x, combine=combine, dim=dim)


def _accumulated(*x: Tensor, combine: Combine, dim: int) -> Tensors:
    n = x[0].shape[dim]
    if n <= _SHORT:
        return scan_along(combine, x, dim)
    moved = [v.movedim(dim, 0) for v in x]
    steps = math.isqrt(n - 1) + 1
    runs = -(-n // steps)
    each = running(combine, [_cut(v, runs, steps) for v in moved])
    ends = running(combine, [v[-1] for v in each])
    before = tuple(e[:-1].expand(steps, *e[:-1].shape) for e in ends)
    later = combine(before, tuple(v[:, 1:] for v in each))
    whole = [torch.cat([v[:, :1], w], 1) for v, w in zip(each, later, strict=True)]
    return tuple(v.transpose(0, 1).flatten(0, 1)[:n].movedim(0, dim) for v in whole)


def _cut(x: Tensor, runs: int, steps: int) -> Tensor:
    """``[n, ...]`` as ``[steps, runs, ...]``; the last run is filled up with the last element."""
    missing = runs * steps - x.shape[0]
    if missing:
        x = torch.cat([x, x[-1:].expand(missing, *x.shape[1:])])
    return x.unflatten(0, (runs, steps)).transpose(0, 1)
