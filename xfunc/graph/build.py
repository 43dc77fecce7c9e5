"""Functions that make nodes, each with the type of its result.

Operands of elementwise operations have equal types; `xfunc.rules.operands` promotes and broadcasts
as torch does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from xfunc.graph.node import ArrayType, Node, NoSuchTypeError, Operation, TupleType, array_type

Number = bool | int | float | complex

# -- constants ------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def _constant(_: str, value: Number, dtype: torch.dtype) -> Node:
    node = Node("constant", array_type(dtype, ()), (), value)
    node.operation = Operation("")  # Many operations share it.
    return node


def constant(value: Number, dtype: torch.dtype) -> Node:
    """A scalar; the value is one of the dtype: see `xfunc.rules.operands.number`."""
    return _constant(repr(value), value, dtype)  # 0.0 == -0.0, and True == 1


def full(value: Number, type: ArrayType) -> Node:
    """An array of equal elements."""
    scalar = constant(value, type.dtype)
    return Node("broadcast", type, (scalar,), ()) if type.dims else scalar


class Literal:
    """The values of a constant array, compared by identity."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def literal(tensor: torch.Tensor) -> Node:
    """The values of a CPU tensor, which nothing writes to."""
    return Node("constant", array_type(tensor.dtype, tuple(tensor.shape)), (), Literal(tensor))


def iota(type: ArrayType, dim: int = 0) -> Node:
    """Positions along a dimension."""
    return Node("iota", type, (), (dim,))


# -- elementwise ----------------------------------------------------------------------------------


def unary(opcode: str, x: Node) -> Node:
    """An elementwise operation with a result of the operand's type."""
    return Node(opcode, x.type, (x,))


def binary(opcode: str, x: Node, y: Node | Number) -> Node:
    """An elementwise operation with a result of the operands' type."""
    if not isinstance(y, Node):
        y = full(y, x.type)
    return Node(opcode, x.type, (x, y))


def add(x: Node, y: Node | Number) -> Node:
    """``x + y``."""
    return binary("add", x, y)


def subtract(x: Node, y: Node | Number) -> Node:
    """``x - y``."""
    return binary("subtract", x, y)


def multiply(x: Node, y: Node | Number) -> Node:
    """``x * y``."""
    return binary("multiply", x, y)


def divide(x: Node, y: Node | Number) -> Node:
    """``x / y``."""
    return binary("divide", x, y)


def compare(x: Node, y: Node | Number, direction: str) -> Node:
    """A comparison: EQ, NE, LT, LE, GT or GE."""
    if not isinstance(y, Node):
        y = full(y, x.type)
    return Node("compare", array_type(torch.bool, x.type.dims), (x, y), direction)


def select(condition: Node, x: Node | Number, y: Node | Number) -> Node:
    """``where(condition, x, y)``; one of x and y is a node."""
    if not isinstance(x, Node):
        assert isinstance(y, Node)
        x = full(x, y.type)
    if not isinstance(y, Node):
        y = full(y, x.type)
    return Node("select", x.type, (condition, x, y))


def not_(x: Node) -> Node:
    """The complement of booleans or bits."""
    return Node("not", x.type, (x,))


def and_(x: Node, y: Node) -> Node:
    """``x & y`` of booleans or bits."""
    return Node("and", x.type, (x, y))


def or_(x: Node, y: Node) -> Node:
    """``x | y`` of booleans or bits."""
    return Node("or", x.type, (x, y))


def convert(x: Node, dtype: torch.dtype) -> Node:
    """XLA's conversion, but to booleans as torch converts; `xfunc.rules.operands` has torch's.

    XLA turns ``convert(mask) * x`` into ``select(mask, x, 0)``, which is 0 where `x` is infinite or
    NaN, while the product is NaN. By way of an integer, the conversion is not recognised, and costs
    nothing: it is computed where it is used.
    """
    if x.type.dtype is dtype:
        return x
    if dtype is torch.bool:
        return compare(x, 0, "NE")
    if x.type.dtype is torch.bool and (dtype.is_floating_point or dtype.is_complex):
        x = Node("convert", array_type(torch.int32, x.type.dims), (x,))
    if x.type.dtype.is_complex and not dtype.is_complex:
        x = real(x)
    return x if x.type.dtype is dtype else Node("convert", array_type(dtype, x.type.dims), (x,))


def bitcast_convert(x: Node, dtype: torch.dtype) -> Node:
    """The same bits as a dtype of the same size."""
    return Node("bitcast-convert", array_type(dtype, x.type.dims), (x,))


def real(x: Node) -> Node:
    """The real parts of complex numbers; real numbers as they are."""
    if not x.type.dtype.is_complex:
        return x
    return Node("real", array_type(x.type.dtype.to_real(), x.type.dims), (x,))


def imag(x: Node) -> Node:
    """The imaginary parts of complex numbers."""
    return Node("imag", array_type(x.type.dtype.to_real(), x.type.dims), (x,))


def complex_(re: Node, im: Node) -> Node:
    """Complex numbers of their parts.

    Raises:
        NoSuchTypeError: the parts are float16.
    """
    if re.type.dtype is torch.float16:
        raise NoSuchTypeError("complex numbers of float16")
    return Node("complex", array_type(re.type.dtype.to_complex(), re.type.dims), (re, im))


# -- shapes ---------------------------------------------------------------------------------------


def reshape(x: Node, dims: tuple[int, ...]) -> Node:
    """The same elements in row-major order."""
    if x.opcode == "reshape":  # Nodes in between have no other meaning.
        (x,) = x.operands
    if x.type.dims == dims:
        return x
    return Node("reshape", array_type(x.type.dtype, dims), (x,))


def broadcast_in(x: Node, dims: tuple[int, ...], places: tuple[int, ...]) -> Node:
    """Dimension k of x becomes dimension ``places[k]`` of the same size; the others repeat."""
    if x.type.dims == dims:
        return x
    return Node("broadcast", array_type(x.type.dtype, dims), (x,), places)


def broadcast(x: Node, dims: tuple[int, ...]) -> Node:
    """Expand to sizes as torch does."""
    old = x.type.dims
    if old == dims:
        return x
    if not old:
        return Node("broadcast", array_type(x.type.dtype, dims), (x,), ())
    lead = len(dims) - len(old)
    kept = [k for k, n in enumerate(old) if n == dims[lead + k]]
    x = reshape(x, tuple([old[k] for k in kept]))
    return broadcast_in(x, dims, tuple([lead + k for k in kept]))


def transpose(x: Node, order: tuple[int, ...]) -> Node:
    """Dimension k of the result is dimension ``order[k]`` of x."""
    old = x.type.dims
    if order == tuple(range(len(old))):
        return x
    type = array_type(x.type.dtype, tuple([old[k] for k in order]))
    return Node("transpose", type, (x,), order)


def reverse(x: Node, dims: tuple[int, ...]) -> Node:
    """Reverse the order along dimensions."""
    return Node("reverse", x.type, (x,), dims) if dims else x


def concatenate(parts: Sequence[Node], dim: int) -> Node:
    """Arrays of equal sizes but along `dim`, one after the other."""
    if len(parts) == 1:
        return parts[0]
    dims = list(parts[0].type.dims)
    dims[dim] = sum([n.type.dims[dim] for n in parts])
    type = array_type(parts[0].type.dtype, tuple(dims))
    return Node("concatenate", type, tuple(parts), (dim,))


def slice_in(x: Node, dim: int, start: int, end: int, step: int = 1) -> Node:
    """``x[start:end:step]`` along a dimension; within bounds."""
    old = x.type.dims
    if end <= start + step:  # of one element; XLA's partitioner does not see that with a step
        end, step = min(end, start + 1), 1
    if start == 0 and end == old[dim] and step == 1:
        return x
    starts, ends, steps = [0] * len(old), list(old), [1] * len(old)
    starts[dim], ends[dim], steps[dim] = start, end, step
    return _slice(x, tuple(starts), tuple(ends), tuple(steps))


def slice_to(x: Node, dims: tuple[int, ...]) -> Node:
    """The leading part of these sizes."""
    if x.type.dims == dims:
        return x
    return _slice(x, (0,) * len(dims), dims, (1,) * len(dims))


def _slice(x: Node, starts: tuple[int, ...], ends: tuple[int, ...], steps: tuple[int, ...]) -> Node:
    new = [-(-(e - s) // t) for s, e, t in zip(starts, ends, steps, strict=True)]
    type = array_type(x.type.dtype, tuple(new))
    return Node("slice", type, (x,), (starts, ends, steps))


def dynamic_slice(x: Node, starts: Sequence[Node], sizes: tuple[int, ...]) -> Node:
    """A part of these sizes from scalars `starts` on, which are clamped."""
    type = array_type(x.type.dtype, sizes)
    return Node("dynamic-slice", type, (x, *starts), sizes)


def update_in(x: Node, part: Node, dim: int, start: int) -> Node:
    """x with `part` written from `start` on along `dim`."""
    zero = constant(0, torch.int64)
    at = [constant(start, torch.int64) if k == dim else zero for k in range(len(x.type.dims))]
    return Node("dynamic-update-slice", x.type, (x, part, *at))


def pad(x: Node, value: Node, edges: tuple[tuple[int, int, int], ...]) -> Node:
    """Pad, or crop where negative: for each dimension before, after, and between elements."""
    if not any(any(e) for e in edges):
        return x
    sizes = [
        max(0, n + low + high + max(0, n - 1) * between)
        for n, (low, high, between) in zip(x.type.dims, edges, strict=True)
    ]
    return Node("pad", array_type(x.type.dtype, tuple(sizes)), (x, value), edges)


# -- reductions and products ----------------------------------------------------------------------


def reduce(opcode: str, x: Node, start: Number, dims: Sequence[int], keepdim: bool = False) -> Node:
    """Combine the elements along distinct dimensions by a binary operation."""
    old, dtype = x.type.dims, x.type.dtype
    if not dims:
        return x
    which = tuple(sorted(dims))
    rest = tuple([n for d, n in enumerate(old) if d not in which])
    reducer = ((opcode, array_type(dtype, ())),)
    out = Node("reduce", array_type(dtype, rest), (x, constant(start, dtype)), which, reducer)
    if not keepdim:
        return out
    return reshape(out, tuple([1 if d in which else n for d, n in enumerate(old)]))


class Window(NamedTuple):
    """The moves of a window along one dimension."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    dilation: int = 1
    base_dilation: int = 1

    def count(self, n: int) -> int:
        """The number of positions over n elements."""
        n = 0 if n == 0 else (n - 1) * self.base_dilation + 1
        span = 0 if self.size == 0 else (self.size - 1) * self.dilation + 1
        total = n + self.low + self.high
        return 0 if total < span else (total - span) // self.stride + 1


def reduce_window(opcode: str, x: Node, start: Number, windows: tuple[Window, ...]) -> Node:
    """Combine the elements of each window."""
    dtype = x.type.dtype
    dims = tuple([w.count(n) for n, w in zip(x.type.dims, windows, strict=True)])
    reducer = ((opcode, array_type(dtype, ())),)
    operands = x, constant(start, dtype)
    return Node("reduce-window", array_type(dtype, dims), operands, windows, reducer)


Dims = tuple[int, ...]


def dot(x: Node, y: Node, contract: tuple[Dims, Dims], batch: tuple[Dims, Dims] = ((), ())) -> Node:
    """A product with the dimensions: batch, the rest of x, the rest of y."""
    (xc, yc), (xb, yb) = contract, batch
    xs, ys = x.type.dims, y.type.dims
    dims = (
        *[xs[k] for k in xb],
        *[n for k, n in enumerate(xs) if k not in xc and k not in xb],
        *[n for k, n in enumerate(ys) if k not in yc and k not in yb],
    )
    return Node("dot", array_type(x.type.dtype, dims), (x, y), (xc, yc, xb, yb))


def matmul(x: Node, y: Node) -> Node:
    """A product of ``[..., n, k]`` and ``[..., k, m]`` with equal leading sizes."""
    rank = len(x.type.dims)
    lead = tuple(range(rank - 2))
    return dot(x, y, ((rank - 1,), (rank - 2,)), (lead, lead))


class Convolution(NamedTuple):
    """A convolution of ``[batch, channels, *space]`` and ``[out, in, *space]``, by default.

    The order of dimensions is given by positions: batch, feature, then space.
    """

    windows: tuple[Window, ...]
    input: Dims
    kernel: Dims  # input feature, output feature, then space
    output: Dims
    feature_groups: int = 1
    batch_groups: int = 1
    reversal: bool = False  # of the windows


def convolution(x: Node, kernel: Node, how: Convolution) -> Node:
    """Slide a kernel over x."""
    dims = [0] * len(how.output)
    dims[how.output[0]] = x.type.dims[how.input[0]] // how.batch_groups
    dims[how.output[1]] = kernel.type.dims[how.kernel[1]]
    for at, to, w in zip(how.input[2:], how.output[2:], how.windows, strict=True):
        dims[to] = w.count(x.type.dims[at])
    return Node("convolution", array_type(x.type.dtype, tuple(dims)), (x, kernel), how)


# -- reading and writing at indices ---------------------------------------------------------------


class GatherDims(NamedTuple):
    """XLA's ``GatherDimensionNumbers``, and the sizes of the slices."""

    offset: Dims
    collapsed: Dims
    start_map: Dims
    vector: int
    sizes: Dims
    operand_batch: Dims = ()
    index_batch: Dims = ()


def gather(x: Node, index: Node, dims: Dims, how: GatherDims) -> Node:
    """Slices of x at indices, as an array of sizes `dims`."""
    return Node("gather", array_type(x.type.dtype, dims), (x, index), how)


class ScatterDims(NamedTuple):
    """XLA's ``ScatterDimensionNumbers``."""

    window: Dims
    inserted: Dims
    operand_map: Dims
    vector: int
    operand_batch: Dims = ()
    index_batch: Dims = ()


def scatter(x: Node, index: Node, updates: Node, opcode: str, how: ScatterDims) -> Node:
    """x with updates combined at indices by an operation; "second" replaces."""
    combine = ((opcode, array_type(x.type.dtype, ())),)
    return Node("scatter", x.type, (x, index, updates), how, combine)


# -- custom calls ---------------------------------------------------------------------------------


class CustomCall(NamedTuple):
    """The parameters of a custom call.

    Attributes:
        target: a name that the compiler knows.
        config: its configuration.
        sharding: a serialised ``OpSharding``.
        version: of the interface.
        tied: whether the sharding is that of another value: see `xfunc.hlo.spmd.annotations`.
        rest: other fields, serialised.
    """

    target: str
    config: str | bytes = ""
    sharding: bytes | None = None
    version: int = 1
    tied: bool = False
    rest: bytes = b""


# -- several results ------------------------------------------------------------------------------


def elements(x: Node, types: Sequence[ArrayType]) -> list[Node]:
    """The results of a node with a tuple type."""
    return [Node("get-tuple-element", t, (x,), k) for k, t in enumerate(types)]


def several(
    opcode: str,
    types: Sequence[ArrayType],
    operands: tuple[Node, ...],
    params: Any = None,
    calls: tuple[Any, ...] = (),
    more: bytes = b"",
) -> list[Node]:
    """The results of an instruction that returns a tuple."""
    whole: Any = TupleType(types)  # which only `elements` reads
    return elements(Node(opcode, whole, operands, params, calls, more), types)


def parameters(types: Sequence[ArrayType]) -> list[Node]:
    """New inputs."""
    return [Node("parameter", t) for t in types]


def zeros(type: ArrayType) -> Node:
    """An array of zeros."""
    return full(0, type)


def call(graph: Any, operands: Sequence[Node], more: bytes = b"") -> list[Node]:
    """The results of a graph; the call may carry attributes."""
    types = [n.type for n in graph.outputs]
    return several("call", types, tuple(operands), None, (graph,), more)


def while_(body: Any, condition: Any, init: Sequence[Node]) -> list[Node]:
    """The last state of a loop, given the graphs of its body and of its condition.

    A state without elements stays what it is; XLA's CPU compiler ends the process on such a loop.
    """
    types = [n.type for n in init]
    if all(0 in t.dims for t in types):
        return [*init]
    return several("while", types, tuple(init), None, (body, condition))


def conditional(
    index: Node, branches: Sequence[Any], operands: Sequence[Sequence[Node]]
) -> list[Node]:
    """The results of the branch that the index selects; each branch has its own operands."""
    types = [n.type for n in branches[0].outputs]
    flat = (index, *[n for of in operands for n in of])
    return several("conditional", types, flat, tuple(map(len, operands)), tuple(branches))


def sort(keys: Sequence[Node], dim: int, comparator: object, stable: bool) -> list[Node]:
    """Sort arrays of equal sizes together, by a comparator: a graph of two scalars of each."""
    types = [k.type for k in keys]
    if len(keys) == 1:
        return [Node("sort", types[0], tuple(keys), (dim, stable), (comparator,))]
    return several("sort", types, tuple(keys), (dim, stable), (comparator,))


def count(dims: Sequence[int]) -> int:
    """The number of elements of an array."""
    return math.prod(dims)
