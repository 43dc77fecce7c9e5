"""Rules of pooling: bases of the kernels in `xfunc.ops.maxima` and `xfunc.ops.windows`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from xfunc.graph import build
from xfunc.graph.build import Window
from xfunc.graph.node import Node, array_type
from xfunc.rules.operands import each, wide
from xfunc.rules.reductions import lowest
from xfunc.tracer.placeholders import Placeholder
from xfunc.tracer.table import base, rule


def pool_count(size: int, window: int, stride: int, pad: int, ceil: bool) -> int:
    """The number of windows along one dimension; the last one begins inside of the array.

    Raises:
        RuntimeError: there are none.
    """
    span = size + 2 * pad - window
    count = (-(-span // stride) if ceil else span // stride) + 1
    count -= ceil and (count - 1) * stride >= size + pad
    if count < 1:
        raise RuntimeError(
            f"Given input size: {size}. Calculated output size: {count}. Output size is too small"
        )
    return count


def pool_window(size: int, window: int, stride: int, pad: int, ceil: bool) -> Window:
    """The windows of a pool along one dimension."""
    count = pool_count(size, window, stride, pad, ceil)
    return Window(window, stride, pad, (count - 1) * stride + window - size - pad)


def _max_pool(name: str, spatial: int) -> None:
    @base(name)
    def run(
        x: Placeholder,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Node, Node]:
        n = x.node
        sizes = n.type.dims[-spatial:]
        window = each(kernel_size, spatial)
        moves = zip(
            sizes, window, each(stride or window, spatial), each(padding, spatial), strict=True
        )
        along = [pool_window(size, w, s, p, ceil_mode) for size, w, s, p in moves]
        windows = (*[Window(1)] * (len(n.type.dims) - spatial), *along)
        value = build.reduce_window("maximum", n, lowest(n.type.dtype), windows)
        return value, _places(n, value, windows, sizes)


def _places(n: Node, value: Node, windows: Sequence[Window], sizes: Sequence[int]) -> Node:
    """The first position of the maximum of each window, within the pooled dimensions."""
    spatial, rank = len(sizes), len(n.type.dims)
    out = value.type.dims
    count = math.prod(sizes)
    type = array_type(torch.int64, n.type.dims)
    place = build.full(0, type)
    for k, size in enumerate(sizes):
        place = build.add(build.multiply(place, size), build.iota(type, rank - spatial + k))
    low = build.constant(lowest(n.type.dtype), n.type.dtype)
    last = build.constant(count, torch.int64)
    edges = tuple([(w.low, max(w.high, 0), 0) for w in windows])
    values, places = build.pad(n, low, edges), build.pad(place, last, edges)
    best = build.full(count, array_type(torch.int64, out))
    offsets = [range(w.size) for w in windows[rank - spatial :]]
    for offset in _product(offsets):
        starts = (*[0] * (rank - spatial), *offset)
        part, at = (_strided(v, starts, windows, out) for v in (values, places))
        hit = build.compare(part, value, "EQ")
        best = build.select(hit, build.binary("minimum", best, at), best)
    return best


def _max_pool_backward(name: str, spatial: int) -> None:
    @base(f"{name}_backward")
    def run(
        grad: Placeholder,
        x: Placeholder,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        places: Placeholder,
    ) -> Node:
        """The gradients at the windows' first elements, then at their second ones, and so on.

        Unlike in a scatter, devices compute the examples that they have.
        """
        del ceil_mode
        dtype, dims = grad.dtype, x.node.type.dims
        lead, sizes = dims[:-spatial], dims[-spatial:]
        index = torch.int32 if math.prod(sizes) < 2**31 else torch.int64
        at, g = build.convert(places.node, index), build.convert(grad.node, wide(dtype))
        window = each(kernel_size, spatial)
        lists = (each(v, spatial) for v in (stride or window, padding, dilation))
        moves = list(zip(sizes, at.type.dims[-spatial:], *lists, strict=True))
        zero, parts = build.constant(0, g.type.dtype), list[Node]()
        for offset in _product([range(w) for w in window]):
            place, edges = build.full(0, at.type), [(0, 0, 0)] * len(lead)
            for k, (size, count, step, pad, apart) in enumerate(moves):
                low = offset[k] * apart - pad
                along = build.multiply(build.iota(at.type, len(lead) + k), step)
                place = build.add(build.multiply(place, size), build.add(along, low))
                edges.append((low, size - low - (count - 1) * step - 1, step - 1))
            part = build.select(build.compare(at, place, "EQ"), g, 0)
            parts.append(build.pad(part, zero, tuple(edges)))
        return build.convert(functools.reduce(build.add, parts), dtype)


def _product(ranges: Sequence[range]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for r in ranges:
        found = [(*f, k) for f in found for k in r]
    return found


def _strided(n: Node, starts: Sequence[int], windows: Sequence[Window], out: Sequence[int]) -> Node:
    for dim, (start, w, count) in enumerate(zip(starts, windows, out, strict=True)):
        n = build.slice_in(n, dim, start, start + (count - 1) * w.stride + 1, w.stride)
    return n


def _average_pool(name: str, spatial: int) -> None:
    @base(name)
    def run(
        x: Placeholder,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
    ) -> Node:
        """Of windows inside of the array: the kernel computes the others."""
        n = x.node
        window = each(kernel_size, spatial)
        moves = zip(n.type.dims[-spatial:], window, each(stride or window, spatial), strict=True)
        along = [pool_window(*move, pad=0, ceil=False) for move in moves]
        windows = (*[Window(1)] * (len(n.type.dims) - spatial), *along)
        return build.divide(build.reduce_window("add", n, 0, windows), math.prod(window))


def _adaptive_average_pool(name: str, spatial: int) -> None:
    @base(name)
    def run(x: Placeholder, output_size: Sequence[int]) -> Node:
        """Of sizes that divide those of the array: the kernel computes the others."""
        n = x.node
        sizes = n.type.dims[-spatial:]
        window = [size // out for size, out in zip(sizes, output_size, strict=True)]
        windows = (*[Window(1)] * (len(n.type.dims) - spatial), *map(Window, window, window))
        return build.divide(build.reduce_window("add", n, 0, windows), math.prod(window))


_average_pool("avg_pool2d", 2)
_average_pool("avg_pool3d", 3)
_adaptive_average_pool("_adaptive_avg_pool2d", 2)
_adaptive_average_pool("_adaptive_avg_pool3d", 3)
for _n in (2, 3):
    _max_pool(f"max_pool{_n}d_with_indices", _n)
    _max_pool_backward(f"max_pool{_n}d_with_indices", _n)


# -- padding --------------------------------------------------------------------------------------


def _replication_pad_backward(name: str, spatial: int) -> None:
    @rule(name)
    def run(grad: Placeholder, x: Placeholder, padding: Sequence[int]) -> Node:
        n, rank = build.convert(grad.node, wide(grad.dtype)), len(grad.node.type.dims)
        for k in range(spatial):
            n = _without_edges(n, rank - 1 - k, padding[2 * k], padding[2 * k + 1])
        return build.convert(n, grad.dtype)


def _without_edges(n: Node, dim: int, low: int, high: int) -> Node:
    """Add what lies in the edges along a dimension to the first and the last element."""
    length = n.type.dims[dim]
    size = length - low - high

    def placed(part: Node, before: int, after: int) -> Node:
        edges = [(0, 0, 0)] * len(part.type.dims)
        edges[dim] = (before, after, 0)
        return build.pad(part, build.constant(0, part.type.dtype), tuple(edges))

    inner = build.slice_in(n, dim, max(low, 0), length - max(high, 0))
    out = placed(inner, max(-low, 0), max(-high, 0))
    if low > 0:
        head = build.reduce("add", build.slice_in(n, dim, 0, low), 0, (dim,), True)
        out = build.add(out, placed(head, 0, size - 1))
    if high > 0:
        tail = build.reduce("add", build.slice_in(n, dim, length - high, length), 0, (dim,), True)
        out = build.add(out, placed(tail, size - 1, 0))
    return out


for _n in (1, 2, 3):
    _replication_pad_backward(f"replication_pad{_n}d_backward", _n)
