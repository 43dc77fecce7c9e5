"""Rules of views, which are copies below functionalisation, and of their derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from xfunc.errors import fail
from xfunc.graph import build
from xfunc.graph.build import GatherDims, ScatterDims
from xfunc.graph.node import Node, array_type
from xfunc.rules.operands import convert, dim_of, dims_of, number, on_cpu
from xfunc.tracer.placeholders import Placeholder, node_of
from xfunc.tracer.table import rule

Dims = tuple[int, ...]

# -- shapes ---------------------------------------------------------------------------------------


def whole_size(dims: Dims, size: Sequence[int]) -> Dims:
    """A size in which -1 stands for the rest of the elements.

    Raises:
        RuntimeError: it does not fit.
    """
    count = math.prod(dims)
    if -1 in size:
        rest = math.prod([s for s in size if s != -1])
        if rest == 0 or count % rest:
            raise RuntimeError(f"shape '{list(size)}' is invalid for input of size {count}")
        return tuple([count // rest if s == -1 else s for s in size])
    if math.prod(size) != count:
        raise RuntimeError(f"shape '{list(size)}' is invalid for input of size {count}")
    return tuple(size)


@rule("view_copy", "_unsafe_view", "view", "_reshape_copy", "_unsafe_view_copy")
def _view(x: Placeholder, size: Sequence[int]) -> Node:
    return build.reshape(x.node, whole_size(x.node.type.dims, size))


@rule("_reshape_alias_copy", "_reshape_alias")
def _reshape_alias(x: Placeholder, size: Sequence[int], stride: Sequence[int]) -> Node:
    return build.reshape(x.node, tuple(size))


@rule("expand_copy", "expand")
def _expand(x: Placeholder, size: Sequence[int], *, implicit: bool = False) -> Node:
    old = x.node.type.dims
    lead = len(size) - len(old)
    for k, n in enumerate(size):
        if k >= lead and n not in (-1, old[k - lead]) and old[k - lead] != 1:
            raise RuntimeError(
                f"The expanded size of the tensor ({n}) must match the existing size "
                f"({old[k - lead]}) at non-singleton dimension {k}.  Target sizes: {list(size)}.  "
                f"Tensor sizes: {list(old)}"
            )
    return build.broadcast(
        x.node, tuple([old[k - lead] if n == -1 else n for k, n in enumerate(size)])
    )


@rule("t_copy", "t")
def _t(x: Placeholder) -> Node:
    return build.transpose(x.node, (1, 0)) if len(x.node.type.dims) == 2 else x.node


@rule("transpose_copy.int", "transpose.int")
def _transpose(x: Placeholder, dim0: int, dim1: int) -> Node:
    rank = len(x.node.type.dims)
    a, b = dim_of(dim0, rank), dim_of(dim1, rank)
    if not rank:
        return x.node
    order = list(range(rank))
    order[a], order[b] = b, a
    return build.transpose(x.node, tuple(order))


@rule("permute_copy", "permute")
def _permute(x: Placeholder, dims: Sequence[int]) -> Node:
    return build.transpose(x.node, dims_of(dims, len(dims)) if dims else ())


@rule("unsqueeze_copy", "unsqueeze")
def _unsqueeze(x: Placeholder, dim: int) -> Node:
    dims = list(x.node.type.dims)
    dims.insert(dim_of(dim, len(dims) + 1), 1)
    return build.reshape(x.node, tuple(dims))


@rule("squeeze_copy", "squeeze")
def _squeeze(x: Placeholder) -> Node:
    return build.reshape(x.node, tuple([n for n in x.node.type.dims if n != 1]))


@rule("squeeze_copy.dim", "squeeze_copy.dims", "squeeze.dim", "squeeze.dims")
def _squeeze_dims(x: Placeholder, dim: Any) -> Node:
    old = x.node.type.dims
    which = dims_of(dim, len(old)) if isinstance(dim, int) or dim else ()
    return build.reshape(x.node, tuple([n for k, n in enumerate(old) if n != 1 or k not in which]))


def bounds(n: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The bounds of a slice, as Python takes them."""
    first, last, _ = slice(start, end).indices(n)
    return first, max(first, last)


@rule("slice_copy.Tensor", "slice.Tensor")
def _slice(
    x: Placeholder, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Node:
    n = x.node
    dim = dim_of(dim, len(n.type.dims))
    return build.slice_in(n, dim, *bounds(n.type.dims[dim], start, end), step)


@rule("narrow_copy")
def _narrow(x: Placeholder, dim: int, start: int, length: int) -> Node:
    dim = dim_of(dim, x.dim())
    start = start % max(x.node.type.dims[dim], 1) if start < 0 else start
    return build.slice_in(x.node, dim, start, start + length)


def _place(index: int, n: int, dim: int) -> int:
    if not -n <= index < n:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {n}")
    return index % n


@rule("select_copy.int", "select.int")
def _select(x: Placeholder, dim: int, index: int) -> Node:
    dims = x.node.type.dims
    dim = dim_of(dim, len(dims))
    index = _place(index, dims[dim], dim)
    return build.reshape(
        build.slice_in(x.node, dim, index, index + 1), dims[:dim] + dims[dim + 1 :]
    )


def put_at(n: Node, part: Node, dim: int, index: int) -> Node:
    """n with `part` at an index along `dim`."""
    dims = n.type.dims
    part = build.broadcast(convert(part, n.type.dtype), dims[:dim] + dims[dim + 1 :])
    part = build.reshape(part, (*dims[:dim], 1, *dims[dim + 1 :]))
    return build.update_in(n, part, dim, _place(index, dims[dim], dim))


@rule("select_scatter")
def _select_scatter(x: Placeholder, src: Placeholder, dim: int, index: int) -> Node:
    return put_at(x.node, node_of(src), dim_of(dim, len(x.node.type.dims)), index)


@rule("select_backward")
def _select_backward(grad: Placeholder, size: Sequence[int], dim: int, index: int) -> Node:
    zeros = build.full(0, array_type(grad.dtype, tuple(size)))
    return put_at(zeros, grad.node, dim_of(dim, len(size)), index)


def put_slice(n: Node, part: Node, dim: int, start: int, end: int, step: int) -> Node:
    """n with ``n[start:end:step] = part`` along `dim`."""
    part = convert(part, n.type.dtype)
    if start >= end:
        return n
    if step == 1:
        return build.update_in(n, part, dim, start)
    length = n.type.dims[dim]
    count = part.type.dims[dim]
    last = start + (count - 1) * step + 1
    edges = [(0, 0, 0)] * len(n.type.dims)
    edges[dim] = (start, length - last, step - 1)
    spread = build.pad(part, build.constant(0, part.type.dtype), tuple(edges))
    ones = build.full(True, array_type(torch.bool, part.type.dims))
    written = build.pad(ones, build.constant(False, torch.bool), tuple(edges))
    return build.select(written, spread, n)


@rule("slice_scatter")
def _slice_scatter(
    x: Placeholder,
    src: Placeholder,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Node:
    n = x.node
    dim = dim_of(dim, len(n.type.dims))
    first, last = bounds(n.type.dims[dim], start, end)
    return put_slice(n, node_of(src), dim, first, last, step)


@rule("slice_backward")
def _slice_backward(
    grad: Placeholder, size: Sequence[int], dim: int, start: int, end: int, step: int
) -> Node:
    dim = dim_of(dim, len(size))
    first, last = bounds(size[dim], start, end)
    n, count = grad.node, grad.node.type.dims[dim]
    if first >= last:
        return build.full(0, array_type(grad.dtype, tuple(size)))
    edges = [(0, 0, 0)] * len(size)
    edges[dim] = (first, size[dim] - (first + (count - 1) * step + 1), step - 1)
    return build.pad(n, build.constant(0, grad.dtype), tuple(edges))


@rule("split_copy.Tensor", "split.Tensor", "unsafe_split.Tensor")
def _split(x: Placeholder, split_size: int, dim: int = 0) -> list[Node]:
    dim = dim_of(dim, len(x.node.type.dims))
    n = x.node.type.dims[dim]
    starts = range(0, n, split_size) if n else (0,)
    return [build.slice_in(x.node, dim, k, min(k + split_size, n)) for k in starts]


@rule("split_with_sizes_copy", "split_with_sizes", "unsafe_split_with_sizes")
def _split_sizes(x: Placeholder, split_sizes: Sequence[int], dim: int = 0) -> list[Node]:
    dim = dim_of(dim, len(x.node.type.dims))
    ends = itertools.accumulate(split_sizes)
    return [build.slice_in(x.node, dim, e - n, e) for n, e in zip(split_sizes, ends, strict=True)]


@rule("unbind_copy.int", "unbind.int")
def _unbind(x: Placeholder, dim: int = 0) -> list[Node]:
    return [_select(x, dim, k) for k in range(x.node.type.dims[dim_of(dim, x.dim())])]


@rule("cat")
def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Node:
    nodes = [node_of(t) for t in tensors]
    dtype = nodes[0].type.dtype
    for n in nodes[1:]:
        dtype = torch.promote_types(dtype, n.type.dtype)
    parts = [convert(n, dtype) for n in nodes if n.type.dims != (0,)]  # torch leaves these out
    if not parts:
        return convert(nodes[0], dtype)
    for at, n in enumerate(nodes):
        if not n.type.dims:
            raise RuntimeError(f"zero-dimensional tensor (at position {at}) cannot be concatenated")
    rank = len(parts[0].type.dims)
    dim = dim_of(dim, rank)
    for at, n in enumerate(nodes):
        _check_part(parts[0].type.dims, n.type.dims, dim, at)
    return build.concatenate(parts, dim)


def _check_part(first: Dims, dims: Dims, dim: int, at: int) -> None:
    """Raise if an operand of ``cat`` does not fit the first one."""
    if dims == (0,):
        return
    if len(dims) != len(first):
        raise RuntimeError(
            f"Tensors must have same number of dimensions: got {len(first)} and {len(dims)}"
        )
    for k, (p, q) in enumerate(zip(first, dims, strict=True)):
        if p != q and k != dim:
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {dim}. Expected size {p} but "
                f"got size {q} for tensor number {at} in the list."
            )


@rule("stack")
def _stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> Node:
    nodes = [node_of(t) for t in tensors]
    dtype = nodes[0].type.dtype
    for n in nodes[1:]:
        dtype = torch.promote_types(dtype, n.type.dtype)
    dims = list(nodes[0].type.dims)
    for k, n in enumerate(nodes):
        if n.type.dims != nodes[0].type.dims:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {dims} at entry 0 and "
                f"{list(n.type.dims)} at entry {k}"
            )
    dim = dim_of(dim, len(dims) + 1)
    dims.insert(dim, 1)
    return build.concatenate([build.reshape(convert(n, dtype), tuple(dims)) for n in nodes], dim)


@rule("flip")
def _flip(x: Placeholder, dims: Sequence[int]) -> Node:
    if not dims:  # A barrier: see `xfunc.ops.single_evaluation`.
        return NotImplemented
    return build.reverse(x.node, tuple(sorted(dims_of(dims, x.dim()))))


@rule("repeat")
def _repeat(x: Placeholder, repeats: Sequence[int]) -> Node:
    n = x.node
    lead = len(repeats) - len(n.type.dims)
    dims = (1,) * lead + n.type.dims
    outer = [k for r, d in zip(repeats, dims, strict=True) for k in (r, d)]
    n = build.broadcast_in(build.reshape(n, dims), tuple(outer), tuple(range(1, 2 * len(dims), 2)))
    return build.reshape(n, tuple([r * d for r, d in zip(repeats, dims, strict=True)]))


@rule("resize")
def _resize(x: Placeholder, size: Sequence[int], **_: Any) -> Node:
    """The first elements, and zeros where torch leaves memory as it is."""
    n, count = _flat(x.node), math.prod(size)
    edges = ((0, count - n.type.dims[0], 0),)
    return build.reshape(build.pad(n, build.constant(0, x.dtype), edges), tuple(size))


@rule("resize_as")
def _resize_as(x: Placeholder, template: torch.Tensor, **_: Any) -> Node:
    return _resize(x, tuple(template.shape))


# -- the same value -------------------------------------------------------------------------------


@rule("clone", "alias_copy", "alias", "detach", "detach_copy", "lift_fresh", "lift_fresh_copy",
      "lift", "_lazy_clone")  # fmt: skip
def _same(x: Placeholder, **_: Any) -> Node:
    return node_of(x)


@rule("copy")
def _copy(x: Placeholder, src: torch.Tensor, non_blocking: bool = False) -> Node:
    return build.broadcast(convert(node_of(src), x.node.type.dtype), x.node.type.dims)


# -- diagonals and strides ------------------------------------------------------------------------


def _flat(n: Node) -> Node:
    return build.reshape(n, (math.prod(n.type.dims),))


def _at(n: Node, places: torch.Tensor) -> Node:
    """The elements of n at positions in row-major order."""
    index = build.literal(places)
    dims = index.type.dims
    if not math.prod(dims):
        return build.full(0, array_type(n.type.dtype, dims))
    how = GatherDims((), (0,), (0,), len(dims), (1,))
    return build.gather(_flat(n), index, dims, how)


def _put(n: Node, places: torch.Tensor, values: Node, opcode: str = "second") -> Node:
    index = build.literal(places)
    if not math.prod(index.type.dims):
        return n
    values = build.broadcast(convert(values, n.type.dtype), index.type.dims)
    how = ScatterDims((), (0,), (0,), len(index.type.dims))
    return build.reshape(build.scatter(_flat(n), index, values, opcode, how), n.type.dims)


def _positions(dims: Dims) -> torch.Tensor:
    return torch.arange(math.prod(dims), device="cpu").reshape(dims)


@rule("diagonal_copy", "diagonal")
def _diagonal(x: Placeholder, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    n, rank = x.node, x.dim()
    return diagonal_of(n, offset, dim_of(dim1, rank), dim_of(dim2, rank))


def _to_the_end(rank: int, a: int, b: int) -> Dims:
    return (*[k for k in range(rank) if k not in (a, b)], a, b)


def _inverse(order: Dims) -> Dims:
    return tuple([order.index(k) for k in range(len(order))])


def _start_and_length(rows: int, columns: int, offset: int) -> tuple[int, int, int]:
    row, column = (-offset, 0) if offset < 0 else (0, offset)
    return row, column, max(0, min(rows - row, columns - column))


def diagonal_of(n: Node, offset: int, a: int, b: int) -> Node:
    """The elements at equal positions along two dimensions, as the last dimension."""
    n = build.transpose(n, _to_the_end(len(n.type.dims), a, b))
    *rest, rows, columns = n.type.dims
    row, column, length = _start_and_length(rows, columns, offset)
    if not length:
        return build.full(0, array_type(n.type.dtype, (*rest, 0)))
    flat = build.reshape(n, (*rest, rows * columns))
    start = row * columns + column
    end = start + (length - 1) * (columns + 1) + 1
    return build.slice_in(flat, len(rest), start, end, columns + 1)


def put_diagonal(n: Node, part: Node, offset: int, a: int, b: int) -> Node:
    """n with a diagonal replaced."""
    order = _to_the_end(len(n.type.dims), a, b)
    n = build.transpose(n, order)
    *rest, rows, columns = dims = n.type.dims
    row, _, length = _start_and_length(rows, columns, offset)
    if length:
        edges = (*[(0, 0, 0)] * len(rest), (row, rows - row - length, 0))
        zero = build.constant(0, n.type.dtype)
        by_row = build.pad(convert(part, n.type.dtype), zero, edges)
        by_row = build.broadcast_in(by_row, dims, tuple(range(len(rest) + 1)))
        places = array_type(torch.int64, dims)
        at = [build.iota(places, len(rest) + k) for k in (0, 1)]
        on = build.compare(build.subtract(at[1], at[0]), offset, "EQ")
        n = build.select(on, by_row, n)
    return build.transpose(n, _inverse(order))


@rule("diagonal_scatter")
def _diagonal_scatter(
    x: Placeholder, src: Placeholder, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Node:
    rank = x.dim()
    return put_diagonal(x.node, node_of(src), offset, dim_of(dim1, rank), dim_of(dim2, rank))


@rule("diagonal_backward")
def _diagonal_backward(
    grad: Placeholder, size: Sequence[int], offset: int, dim1: int, dim2: int
) -> Node:
    zeros = build.full(0, array_type(grad.dtype, tuple(size)))
    rank = len(size)
    return put_diagonal(zeros, grad.node, offset, dim_of(dim1, rank), dim_of(dim2, rank))


@rule("diag_embed")
def _diag_embed(x: Placeholder, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    n, rank = x.node, x.dim() + 1
    a, b = dim_of(dim1, rank), dim_of(dim2, rank)
    size = n.type.dims[-1] + abs(offset)
    dims = list(n.type.dims[:-1])
    for k in sorted((a, b)):
        dims.insert(k, size)
    return put_diagonal(build.full(0, array_type(n.type.dtype, tuple(dims))), n, offset, a, b)


def _triangle(name: str, direction: str) -> None:
    @rule(name)
    def run(x: Placeholder, diagonal: int = 0) -> Node:
        n, dims = x.node, x.node.type.dims
        if len(dims) < 2:
            raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")
        type = array_type(torch.int64, dims)
        row, column = build.iota(type, len(dims) - 2), build.iota(type, len(dims) - 1)
        inside = build.compare(build.subtract(column, row), diagonal, direction)
        return build.select(inside, n, 0)


_triangle("tril", "LE")
_triangle("triu", "GE")


def check_strides(count: int, size: Sequence[int], stride: Sequence[int], start: int) -> None:
    """Raise if strides lead out of an array of `count` elements."""
    last = start + sum([(n - 1) * step for n, step in zip(size, stride, strict=True)])
    if min(stride, default=0) < 0 or start < 0 or (0 not in size and last >= count):
        fail(
            RuntimeError,
            f"as_strided with sizes {[*size]}, strides {[*stride]} and offset {start} "
            f"goes beyond the {count} elements of the array",
            "choose them so that every element lies in the array, which has no strides of its own.",
        )


@on_cpu
def _strided(
    count: int, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> torch.Tensor:
    """The positions that strides lead to in an array of `count` elements."""
    start = offset or 0
    check_strides(count, size, stride, start)
    return _positions((count,)).as_strided(tuple(size), tuple(stride), start).contiguous()


@rule("as_strided_copy", "as_strided")
def _as_strided(
    x: Placeholder, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Node:
    return _at(x.node, _strided(x.numel(), size, stride, storage_offset))


@rule("as_strided_scatter")
def _as_strided_scatter(
    x: Placeholder,
    src: Placeholder,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> Node:
    places = _strided(x.numel(), size, stride, storage_offset)
    return _put(x.node, places, node_of(src))


@rule("unfold_copy", "unfold")
@on_cpu
def _unfold(x: Placeholder, dimension: int, size: int, step: int) -> Node:
    n, rank = x.node, x.dim()
    if not rank:
        return build.reshape(n, (size,))
    dim = dim_of(dimension, rank)
    dims = n.type.dims
    count = (dims[dim] - size) // step + 1
    torch.empty((), device="cpu").expand(dims[dim]).unfold(0, size, step)  # for its errors
    places = array_type(torch.int64, (count, size))
    index = build.add(build.multiply(build.iota(places, 0), step), build.iota(places, 1))
    # The window's own dimension comes last.
    out = (*dims[:dim], count, *dims[dim + 1 :], size)
    rest = tuple([k if k < dim else k + 1 for k in range(rank - 1)])
    sizes = tuple([1 if k == dim else d for k, d in enumerate(dims)])
    offsets = tuple([k for k in range(rank + 1) if k not in (dim, rank)])
    assert len(offsets) == len(rest)
    return build.gather(n, index, out, GatherDims(offsets, (dim,), (dim,), 2, sizes))


@rule("constant_pad_nd")
def _constant_pad(x: Placeholder, pad: Sequence[int], value: Any = 0) -> Node:
    n = x.node
    edges = [(0, 0, 0)] * len(n.type.dims)
    for k in range(len(pad) // 2):
        edges[len(edges) - 1 - k] = (pad[2 * k], pad[2 * k + 1], 0)
    return build.pad(n, build.constant(number(value, n.type.dtype), n.type.dtype), tuple(edges))


# -- parts of complex numbers ---------------------------------------------------------------------


@rule("view_as_real_copy")
def _view_as_real(x: Placeholder) -> Node:
    n = x.node
    parts = [build.reshape(p, (*n.type.dims, 1)) for p in (build.real(n), build.imag(n))]
    return build.concatenate(parts, len(n.type.dims))


@rule("view_as_complex_copy")
def _view_as_complex(x: Placeholder) -> Node:
    n, dims = x.node, x.node.type.dims
    parts = [build.slice_in(n, len(dims) - 1, k, k + 1) for k in (0, 1)]
    return build.complex_(*[build.reshape(p, dims[:-1]) for p in parts])
