"""Rules of sorts and of the choice of the greatest elements.

Bases of the kernels in `xfunc.ops.sorting`, which make numbers comparable as torch compares them.
"""

from __future__ import annotations

import functools

import torch

from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node, array_type, unattributed
from xfunc.rules.operands import dim_of
from xfunc.tracer.placeholders import Placeholder
from xfunc.tracer.table import base


@functools.cache
def comparator(dtype: torch.dtype, others: tuple[torch.dtype, ...], descending: bool) -> Graph:
    """A function that compares the keys of two elements, and ignores the other values."""
    with unattributed():
        given = build.parameters([array_type(d, ()) for d in (dtype, *others) for _ in range(2)])
        how: object = "GT" if descending else "LT"
        if dtype.is_floating_point:  # in a total order: NaN last
            how = how, "TOTALORDER"
        before = Node("compare", array_type(torch.bool, ()), (given[0], given[1]), how)
    return Graph("compare", given, [before])


def sorted_with_places(
    n: Node, dim: int, descending: bool, stable: bool = True
) -> tuple[Node, Node]:
    """The sorted elements along a dimension, and where they were."""
    places = build.iota(array_type(torch.int64, n.type.dims), dim)
    order = comparator(n.type.dtype, (torch.int64,), descending)
    value, place = build.sort([n, places], dim, order, stable)
    return value, place


@base("sort.stable")
def _sort(
    x: Placeholder, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Node, Node]:
    n = x.node
    return sorted_with_places(n, dim_of(dim, len(n.type.dims)), descending, bool(stable))


@base("topk")
def _topk(
    x: Placeholder, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Node, ...]:
    n = x.node
    if not n.type.dims:
        return n, build.full(0, array_type(torch.int64, ()))
    dim = dim_of(dim, len(n.type.dims))
    if not 0 <= k <= n.type.dims[dim]:
        raise RuntimeError("selected index k out of range")
    pair = sorted_with_places(n, dim, largest)
    return tuple([build.slice_in(v, dim, 0, k) for v in pair])


@base("kthvalue")
def _kthvalue(x: Placeholder, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Node, ...]:
    n = x.node
    if not n.type.dims:
        return n, build.full(0, array_type(torch.int64, ()))
    dim = dim_of(dim, len(n.type.dims))
    if not 1 <= k <= n.type.dims[dim]:
        raise RuntimeError("kthvalue(): selected number k out of range for dimension")
    found = [build.slice_in(v, dim, k - 1, k) for v in sorted_with_places(n, dim, False)]
    if keepdim:
        return tuple(found)
    dims = n.type.dims
    return tuple([build.reshape(v, dims[:dim] + dims[dim + 1 :]) for v in found])
