"""Rules of reads and writes at indices.

Reads out of bounds are clamped, and writes are dropped, as in JAX. Where torch takes no negative
index, each one is beyond the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from xfunc.graph import build
from xfunc.graph.build import GatherDims, Number, ScatterDims, add, compare, select
from xfunc.graph.node import Node, array_type
from xfunc.rules.factories import refuse_read
from xfunc.rules.operands import HALF, broadcast_dims, convert, dim_of, number, on_cpu
from xfunc.tracer.placeholders import Placeholder, node_of
from xfunc.tracer.table import base, rule

Dims = tuple[int, ...]


# Labels of losses may be bytes, which are indices below them.
_INDICES = frozenset((torch.int64, torch.int32, torch.uint8))


def as_index(i: Node) -> Node:
    """Indices as int64."""
    if i.type.dtype not in _INDICES:
        raise RuntimeError(f"Expected dtype int32/int64 for index, not {i.type.dtype}")
    return convert(i, torch.int64)


def from_front(i: Node, size: int) -> Node:
    """Indices counted from the front, as int64."""
    i = as_index(i)
    return select(compare(i, 0, "LT"), add(i, size), i)


def from_front_only(i: Node, size: int) -> Node:
    """Indices as int64, of an operation that takes no negative ones."""
    i = as_index(i)
    return select(compare(i, 0, "LT"), size, i)


# -- along one dimension --------------------------------------------------------------------------


def _lifted(*nodes: Node) -> tuple[Node, ...]:
    """0-d arrays as arrays of one element."""
    return tuple([n if n.type.dims else build.reshape(n, (1,)) for n in nodes])


@rule("gather")
def _gather(x: Placeholder, dim: int, index: Placeholder, *, sparse_grad: bool = False) -> Node:
    n, i = _lifted(x.node, index.node)
    out = index.node.type.dims
    if not math.prod(out):
        return build.full(0, array_type(n.type.dtype, out))
    rank = len(n.type.dims)
    dim = dim_of(dim, rank)
    others = tuple([k for k in range(rank) if k != dim])
    n = _cut(n, i.type.dims, dim)
    how = GatherDims((), (dim,), (dim,), rank, (1,) * rank, others, others)
    i = from_front_only(i, n.type.dims[dim])
    return build.reshape(build.gather(n, i, i.type.dims, how), out)


def _cut(n: Node, dims: Dims, dim: int) -> Node:
    """n cut to the sizes of an index in the other dimensions."""
    _check_covered("self", n, dims, dim)
    return build.slice_to(n, (*dims[:dim], n.type.dims[dim], *dims[dim + 1 :]))


def _check_covered(name: str, n: Node, dims: Dims, but: int = -1) -> None:
    """Raise if an index of these sizes is larger than an array in some dimension but one."""
    sizes = n.type.dims
    if len(dims) != len(sizes):
        raise RuntimeError(f"Index tensor must have the same number of dimensions as {name} tensor")
    if any(d > s for k, (d, s) in enumerate(zip(dims, sizes, strict=True)) if k != but):
        raise RuntimeError(
            f"Expected index {list(dims)} to be no larger than {name} {list(sizes)}"
            + f" apart from dimension {but}" * (but >= 0)
        )


def scattered(n: Node, dim: int, i: Node, values: Node, opcode: str) -> Node:
    """n with values combined at indices along a dimension."""
    if n.type.dtype is torch.bool and opcode == "add":
        opcode = "or"
    if not math.prod(i.type.dims):
        return n
    out = n.type.dims
    n, i, values = _lifted(n, i, values)
    rank = len(n.type.dims)
    dim = dim_of(dim, rank)
    _check_covered("self", n, i.type.dims, dim)
    _check_covered("src", values, i.type.dims)
    values = build.slice_to(values, i.type.dims)
    dtype = n.type.dtype
    wide = torch.float32 if dtype in HALF and opcode == "add" else dtype
    n, values = build.convert(n, wide), build.convert(values, wide)
    i = as_index(i)
    if _is_fill(n) and _are_few(i.type.dims, n.type.dims, dim):
        return build.convert(build.reshape(_written(n, dim, i, values, opcode), out), dtype)
    # Not batch dimensions: XLA's partitioner is wrong on some. See `xfunc.hlo.passes.scatters`.
    column = array_type(torch.int64, (*i.type.dims, 1))  # XLA's partitioner looks for an iota
    i = build.reshape(i, column.dims)
    columns = [i if k == dim else build.iota(column, k) for k in range(rank)]
    every = tuple(range(rank))
    how = ScatterDims((), every, every, rank)
    made = build.scatter(n, build.concatenate(columns, rank), values, opcode, how)
    return build.convert(build.reshape(made, out), dtype)


# NOTE [few places]: the gradient of a gather of one element of each row, as in a cross entropy or a
# maximum, is a comparison with the position. Unlike a scatter, it is fused with what uses it, and
# devices compute the rows that they have: see `xfunc.hlo.passes.scatters` for why scatters do not.
def _are_few(places: Dims, dims: Dims, dim: int) -> bool:
    """Whether there is one place in each row of an array, or a few of a short row.

    Not all of a row, as in a sort: a program is like those for other sizes.
    """
    alike = all(p == n for k, (p, n) in enumerate(zip(places, dims, strict=True)) if k != dim)
    few = places[dim] <= 8 and places[dim] < dims[dim] <= 1024
    return alike and (places[dim] == 1 or few)


def _is_fill(n: Node) -> bool:
    return n.opcode == "broadcast" and n.operands[0].opcode == "constant"


def _written(n: Node, dim: int, i: Node, values: Node, opcode: str) -> Node:
    position = build.iota(array_type(torch.int64, n.type.dims), dim)
    for k in range(i.type.dims[dim]):
        place, value = (
            build.broadcast(build.slice_in(m, dim, k, k + 1), n.type.dims) for m in (i, values)
        )
        new = value if opcode == "second" else build.binary(opcode, n, value)
        n = build.select(build.compare(position, place, "EQ"), new, n)
    return n


def _of_dtype(src: Placeholder, x: Placeholder) -> Node:
    if src.dtype is not x.dtype:
        raise RuntimeError("scatter(): Expected self.dtype to be equal to src.dtype")
    return node_of(src)


@rule("scatter_add")
def _scatter_add(x: Placeholder, dim: int, index: Placeholder, src: Placeholder) -> Node:
    return scattered(x.node, dim, index.node, _of_dtype(src, x), "add")


@rule("scatter.src")
def _scatter(x: Placeholder, dim: int, index: Placeholder, src: Placeholder) -> Node:
    return scattered(x.node, dim, index.node, _of_dtype(src, x), "second")


@rule("scatter.value")
def _scatter_value(x: Placeholder, dim: int, index: Placeholder, value: Number) -> Node:
    i = index.node
    values = build.full(number(value, x.dtype), array_type(x.dtype, i.type.dims))
    return scattered(x.node, dim, i, values, "second")


@rule("put")
def _put(x: Placeholder, index: Placeholder, source: Placeholder, accumulate: bool = False) -> Node:
    n, size = x.node, math.prod(x.node.type.dims)
    if index.numel() != source.numel():
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {source.numel()}, index.numel() = {index.numel()}"
        )
    i = build.reshape(from_front(node_of(index), size), (math.prod(index.shape),))
    values = build.reshape(convert(node_of(source), x.dtype), i.type.dims)
    flat = build.reshape(n, (size,))
    return build.reshape(
        scattered(flat, 0, i, values, "add" if accumulate else "second"), x.node.type.dims
    )


_COMBINE = {"sum": "add", "prod": "multiply", "amax": "maximum", "amin": "minimum"}


@base("scatter_reduce.two")
def _scatter_reduce(
    x: Placeholder,
    dim: int,
    index: Placeholder,
    src: Placeholder,
    reduce: str,
    *,
    include_self: bool = True,
) -> Node:
    opcode = _COMBINE[reduce]
    if x.dtype is torch.bool:
        opcode = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}[opcode]
    return scattered(x.node, dim, index.node, convert(node_of(src), x.dtype), opcode)


@rule("index_select")
def _index_select(x: Placeholder, dim: int, index: Placeholder) -> Node:
    n, i = x.node, node_of(index)
    if not n.type.dims:
        return n
    dim = dim_of(dim, len(n.type.dims))
    i = from_front_only(build.reshape(i, (math.prod(i.type.dims),)), n.type.dims[dim])
    return taken(n, [None] * dim + [i])


# -- at several indices ---------------------------------------------------------------------------


def _index_vectors(dims: Dims, at: Sequence[int], each: Sequence[Node]) -> tuple[Node, Dims]:
    """Index vectors along a last dimension, and the sizes of the others."""
    batch: Dims = ()
    for i in each:
        batch = broadcast_dims(batch, i.type.dims)
    columns = [
        build.reshape(build.broadcast(from_front(i, dims[k]), batch), (*batch, 1))
        for k, i in zip(at, each, strict=True)
    ]
    return build.concatenate(columns, len(batch)), batch


def _window(dims: Dims, at: Sequence[int], batch: Dims) -> tuple[Dims, Dims]:
    """The sizes of ``x[indices]``, and which of its dimensions are not of the indices."""
    rest = [k for k in range(len(dims)) if k not in at]
    lead = at[0] if [*at] == list(range(at[0], at[0] + len(at))) else 0
    kept = tuple([dims[k] for k in rest])
    window = tuple([k if k < lead else k + len(batch) for k in range(len(rest))])
    return kept[:lead] + batch + kept[lead:], window


def taken(n: Node, indices: Sequence[Node | None]) -> Node:
    """``n[indices]``, of integers."""
    dims = n.type.dims
    at = [k for k, i in enumerate(indices) if i is not None]
    each = [i for i in indices if i is not None]
    vectors, batch = _index_vectors(dims, at, each)
    out, window = _window(dims, at, batch)
    if not math.prod(out):
        return build.full(0, array_type(n.type.dtype, out))
    if any(dims[k] == 0 for k in at):
        raise IndexError("index is out of bounds for dimension with size 0")
    sizes = tuple([1 if k in at else d for k, d in enumerate(dims)])
    which = tuple(at)
    return build.gather(n, vectors, out, GatherDims(window, which, which, len(batch), sizes))


def _positions(dims: Dims, indices: Sequence[torch.Tensor | None]) -> list[Node | None]:
    """Indices as nodes of integers: a mask that is a constant becomes the positions it selects.

    Raises:
        IndexError: a mask has other sizes than the array.
    """
    found: list[Node | None] = []
    for i in indices:
        if i is None or i.dtype not in (torch.bool, torch.uint8):
            found.append(None if i is None else node_of(i))
            continue
        mask = _values_of(i)
        for k, size in enumerate(mask.shape):
            at = len(found) + k
            if at >= len(dims) or size != dims[at]:
                raise IndexError(
                    f"The shape of the mask {list(mask.shape)} at index {k} does not match the "
                    f"shape of the indexed tensor {list(dims)} at index {at}"
                )
        found += map(build.literal, _places_in(mask))
    return found


@on_cpu
def _places_in(mask: torch.Tensor) -> list[torch.Tensor]:
    return [column.clone() for column in mask.nonzero().unbind(1)]


def _values_of(x: torch.Tensor) -> torch.Tensor:
    """The values of a constant array."""
    n = node_of(x)
    if not isinstance(n.params, build.Literal):
        refuse_read()
    return n.params.tensor


@rule("nonzero")
def _nonzero(x: Placeholder) -> Node:
    """Of a constant: torch.func asks for the positions of a mask among indices."""
    return build.literal(on_cpu(torch.nonzero)(_values_of(x)))


@rule("index.Tensor", "_unsafe_index.Tensor")
def _index(x: Placeholder, indices: Sequence[Placeholder | None]) -> Node:
    if all(i is None for i in indices):
        return x.node
    return taken(x.node, _positions(x.node.type.dims, indices))


@rule("index_put_")  # on a copy that the kernel of `xfunc.ops` has made
@base("index_put", "_unsafe_index_put", "_index_put_impl")
def _index_put(
    x: Placeholder,
    indices: Sequence[Placeholder | None],
    values: Placeholder,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Node:
    n, dims = x.node, x.node.type.dims
    nodes = _positions(dims, indices)
    at = [k for k, i in enumerate(nodes) if i is not None]
    each = [i for i in nodes if i is not None]
    if not at:
        v = build.broadcast(convert(node_of(values), n.type.dtype), dims)
        return add(n, v) if accumulate else v
    vectors, batch = _index_vectors(dims, at, each)
    target, window = _window(dims, at, batch)
    given = node_of(values).type.dims
    if len(given) > len(target) or any(
        m not in (1, n) for m, n in zip(given[::-1], target[::-1], strict=False)
    ):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {[*given]} cannot be broadcast to "
            f"indexing result of shape {[*target]}"
        )
    v = build.broadcast(convert(node_of(values), n.type.dtype), target)
    if not math.prod(target):
        return n
    which = tuple(at)
    dtype = n.type.dtype
    opcode = ("or" if dtype is torch.bool else "add") if accumulate else "second"
    wide = torch.float32 if dtype in HALF and accumulate else dtype
    n, v = build.convert(n, wide), build.convert(v, wide)
    made = build.scatter(n, vectors, v, opcode, ScatterDims(window, which, which, len(batch)))
    return build.convert(made, dtype)


# -- tables ---------------------------------------------------------------------------------------


@rule("embedding")
def _embedding(
    weight: Placeholder,
    indices: Placeholder,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Node:
    if weight.ndim != 2:
        raise RuntimeError("'weight' must be 2-D")
    return taken(weight.node, [from_front_only(indices.node, weight.node.type.dims[0])])


@base("embedding_dense_backward")
def _embedding_backward(
    grad: Placeholder, indices: Placeholder, count: int, padding_idx: int, scale: bool
) -> Node:
    if scale or padding_idx >= 0:
        return NotImplemented
    i, g = indices.node, grad.node
    size = g.type.dims[-1]
    dtype = g.type.dtype
    wide = torch.float32 if dtype in HALF else dtype
    zeros = build.full(0, array_type(wide, (count, size)))
    if not math.prod(i.type.dims):
        return build.convert(zeros, dtype)
    rank = len(i.type.dims)
    i = build.reshape(from_front(i, count), (*i.type.dims, 1))
    how = ScatterDims((rank,), (0,), (0,), rank)
    return build.convert(build.scatter(zeros, i, build.convert(g, wide), "add", how), dtype)
