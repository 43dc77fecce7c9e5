"""Rules of matrix products and convolutions."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from xfunc.graph import build
from xfunc.graph.build import Convolution, CustomCall, Number, Window, add, multiply
from xfunc.graph.node import Node, array_type
from xfunc.rules.elementwise import conjugate
from xfunc.rules.operands import HALF, convert, each, number
from xfunc.rules.reductions import reduced
from xfunc.tracer.placeholders import Placeholder, node_of
from xfunc.tracer.table import rule


def _alike(*tensors: torch.Tensor) -> tuple[Node, ...]:
    """Operands of a product.

    Raises:
        RuntimeError: their dtypes differ.
    """
    nodes = tuple(map(node_of, tensors))
    for n in nodes[1:]:
        if n.type.dtype is not nodes[0].type.dtype:
            raise RuntimeError(
                "expected m1 and m2 to have the same dtype, but got: "
                f"{_cpp_name(nodes[0].type.dtype)} != {_cpp_name(n.type.dtype)}"
            )
    return nodes


_CPP_NAMES = {
    "uint8": "unsigned char", "int8": "signed char", "int16": "short", "int32": "int",
    "int64": "long", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "float32": "float",
    "float64": "double", "complex64": "c10::complex<float>", "complex128": "c10::complex<double>",
}  # fmt: skip


def _cpp_name(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return _CPP_NAMES.get(name, name)


def _fit(x: Node, y: Node, rank: int) -> None:
    """Raise torch's errors unless two arrays of a rank can be multiplied."""
    p, q = x.type.dims, y.type.dims
    if rank == 2:
        for name, dims in (("self", p), ("mat2", q)):
            if len(dims) != 2:
                raise RuntimeError(f"{name} must be a matrix")
        if p[1] != q[0]:
            raise RuntimeError(
                f"mat1 and mat2 shapes cannot be multiplied ({p[0]}x{p[1]} and {q[0]}x{q[1]})"
            )
        return
    for name, dims in (("batch1", p), ("batch2", q)):
        if len(dims) != 3:
            raise RuntimeError(f"{name} must be a 3D tensor")
    if (p[0], p[2]) != q[:2]:
        raise RuntimeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[{p[0]}, {p[2]}] but got: [{q[0]}, {q[1]}]."
        )


def _product(a: torch.Tensor, b: torch.Tensor, rank: int) -> Node:
    x, y = _alike(a, b)
    if x.type.dtype is torch.bool:
        return NotImplemented
    _fit(x, y, rank)
    return build.matmul(x, y) if rank == 2 else _batched(x, y)


# NOTE [merged dimensions]: torch.matmul and einsum merge dimensions into one of a batch, one of
# rows and one of columns, and split those of the product again. If two that were merged are sharded
# (rows over "data", heads over "tensor"), XLA's partitioner gathers one of them first. So this is a
# product of what was merged, in its own dimensions, and the reshapes cancel. Rows that one matrix
# multiplies stay merged unless they are sharded so: see `xfunc.hlo.passes.merged`.
def _batched(x: Node, y: Node) -> Node:
    """A product of ``[batch, n, k]`` and ``[batch, k, m]``."""
    dims = (*x.type.dims[:2], y.type.dims[2])
    if 0 in (*x.type.dims, *y.type.dims):
        return build.matmul(x, y)
    a, b = _unmerged(x), _unmerged(y)
    batches, inners = _common(a.parts[0], b.parts[0]), _common(a.parts[2], b.parts[1])
    if batches is None or inners is None:
        return build.matmul(x, y)
    batch, inner = [size for size, _ in batches], [size for size, _ in inners]
    x, (xb, _, xk) = a.split((batch, a.parts[1], inner))
    y, (yb, yk, _) = b.split((batch, inner, b.parts[2]))
    return build.reshape(build.dot(x, y, (xk, yk), (xb, yb)), dims)


class _Unmerged(NamedTuple):
    """An array, as made of another by merging dimensions, and moving those that result.

    Attributes:
        of: the other.
        order: the places that the dimensions of the array had before they were moved.
        parts: the sizes that each dimension of the array was merged from.
    """

    of: Node
    order: tuple[int, ...]
    parts: Sequence[Sequence[int]]

    def split(self, parts: Sequence[Sequence[int]]) -> tuple[Node, list[tuple[int, ...]]]:
        """The other with smaller parts, and the dimensions of it that make each of the array's."""
        sizes, dims = list[int](), [tuple[int, ...]()] * len(parts)
        for place in range(len(parts)):
            k = self.order.index(place)
            dims[k] = tuple(range(len(sizes), len(sizes) + len(parts[k])))
            sizes += parts[k]
        return build.reshape(self.of, tuple(sizes)), dims


def _unmerged(n: Node) -> _Unmerged:
    order = tuple(range(len(n.type.dims)))
    if n.opcode == "transpose":
        (n,), order = n.operands, n.params
    dims, parts = n.type.dims, [[size] for size in n.type.dims]
    if n.opcode == "reshape" and (found := _common(n.operands[0].type.dims, dims)) is not None:
        parts = [[size for size, k in found if k == dim] for dim in range(len(dims))]
        (n,) = n.operands
    return _Unmerged(n, order, [parts[k] for k in order])


def _common(x: Sequence[int], y: Sequence[int]) -> list[tuple[int, int]] | None:
    """The fewest sizes that both can be split into, each with the place in y of what it is of.

    Dimensions of size 1 stay, so that a program is like those for other sizes. None if there are no
    such sizes.
    """
    xs, ys, found = list(x), list(y), list[tuple[int, int]]()
    i = j = 0
    while i < len(xs) and j < len(ys):
        a, b = xs[i], ys[j]
        size = min(a, b)
        if max(a, b) % size:
            return None
        found.append((size, j))
        xs[i], ys[j] = a // size, b // size
        i, j = i + (a <= b), j + (b <= a)
    found += [(1, len(ys) - 1)] * (len(xs) - i)
    return found + [(1, k) for k in range(j, len(ys))]


@rule("mm")
def _mm(a: Placeholder, b: Placeholder) -> Node:
    return _product(a, b, 2)


@rule("bmm")
def _bmm(a: Placeholder, b: Placeholder) -> Node:
    return _product(a, b, 3)


@rule("mv")
def _mv(a: Placeholder, b: Placeholder) -> Node:
    x, y = _alike(a, b)
    if x.type.dtype is torch.bool:
        return NotImplemented
    ranks = len(x.type.dims), len(y.type.dims)
    if ranks != (2, 1):
        raise RuntimeError(f"vector + matrix @ vector expected, got 1, {ranks[0]}, {ranks[1]}")
    if x.type.dims[1] != y.type.dims[0]:
        (n, m), (k,) = x.type.dims, y.type.dims
        raise RuntimeError(f"size mismatch, got input ({n}), mat ({n}x{m}), vec ({k})")
    return build.dot(x, y, ((1,), (0,)))


@rule("dot")
def _dot(a: Placeholder, b: Placeholder) -> Node:
    x, y = _alike(a, b)
    if x.type.dtype is torch.bool:
        return NotImplemented
    return _inner(x, y)


def _inner(x: Node, y: Node) -> Node:
    """The sum of the products of two vectors' elements.

    Raises:
        RuntimeError: they are no vectors, or their lengths differ.
    """
    ranks = len(x.type.dims), len(y.type.dims)
    if ranks != (1, 1):
        raise RuntimeError(f"1D tensors expected, but got {ranks[0]}D and {ranks[1]}D tensors")
    if x.type.dims != y.type.dims:
        (n,), (m,) = x.type.dims, y.type.dims
        raise RuntimeError(
            f"inconsistent tensor size, expected tensor [{n}] and src [{m}] to have the same "
            f"number of elements, but got {n} and {m} elements respectively"
        )
    return build.dot(x, y, ((0,), (0,)))


@rule("vdot")
def _vdot(a: Placeholder, b: Placeholder) -> Node:
    n, y = _alike(a, b)
    n = conjugate(n)
    if n.type.dtype is torch.bool:
        return NotImplemented
    return _inner(n, y)


def _scaled_sum(c: Node, product: Node, beta: Number, alpha: Number) -> Node:
    """``beta * c + alpha * product``, in float32 for half precision."""
    dtype = product.type.dtype
    c = build.broadcast(convert(c, dtype), product.type.dims)
    if alpha == 1 and beta == 1:
        return add(product, c)
    up = torch.float32 if dtype in HALF else dtype
    out = build.convert(product, up)
    if alpha != 1:
        out = multiply(out, number(alpha, up))
    if beta != 0:
        c = build.convert(c, up)
        out = add(out, c if beta == 1 else multiply(c, number(beta, up)))
    return build.convert(out, dtype)


@rule("addmm", "baddbmm")
def _addmm(
    c: Placeholder, a: Placeholder, b: Placeholder, *, beta: Number = 1, alpha: Number = 1
) -> Node:
    product = _product(a, b, a.dim())
    return product if product is NotImplemented else _scaled_sum(node_of(c), product, beta, alpha)


@rule("addbmm")
def _addbmm(
    c: Placeholder, a: Placeholder, b: Placeholder, *, beta: Number = 1, alpha: Number = 1
) -> Node:
    x, y = _alike(a, b)
    if x.type.dtype is torch.bool:
        return NotImplemented
    _fit(x, y, 3)
    if cmath.isfinite(alpha):
        product = build.dot(x, y, ((0, 2), (0, 1)))
    else:  # of each product, as in torch: infinities may cancel
        terms = multiply(build.matmul(x, y), number(alpha, x.type.dtype))
        product, alpha = reduced("add", terms, 0, (0,)), 1
    return _scaled_sum(node_of(c), product, beta, alpha)


@rule("addmv")
def _addmv(
    c: Placeholder, a: Placeholder, b: Placeholder, *, beta: Number = 1, alpha: Number = 1
) -> Node:
    product = _mv(a, b)
    return product if product is NotImplemented else _scaled_sum(node_of(c), product, beta, alpha)


# -- eigenvalues ----------------------------------------------------------------------------------


@rule("_linalg_eigh")
def _eigh(a: Placeholder, UPLO: str = "L", compute_v: bool = True) -> tuple[Node, Node]:
    """By XLA's expansion, or LAPACK: see `xfunc.backends.lapack`."""
    n, dims = a.node, a.node.type.dims
    dtype = n.type.dtype
    values = array_type(dtype.to_real() if dtype.is_complex else dtype, dims[:-1])
    nothing = array_type(dtype, (0,))
    if not math.prod(dims):
        return build.full(0, values), build.full(0, n.type if compute_v else nothing)
    lower = int(UPLO.upper() == "L")
    params = CustomCall("Eigh", f"{lower},1,100,0.000001")  # sorted; steps, tolerance
    vectors, found = build.several("custom-call", [n.type, values], (n,), params)
    return found, vectors if compute_v else build.full(0, nothing)


# -- convolutions ---------------------------------------------------------------------------------


@rule("convolution", "convolution_overrideable")
def _convolution(
    x: Placeholder,
    weight: Placeholder,
    bias: Placeholder | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Node:
    n, w = _alike(x, weight)
    space = len(w.type.dims) - 2
    unbatched = len(n.type.dims) == space + 1
    if unbatched:
        n = build.reshape(n, (1, *n.type.dims))
    stride, padding, dilation, output_padding = (
        each(v, space) for v in (stride, padding, dilation, output_padding)
    )
    _check_windows(stride, padding, dilation)
    beside = zip(output_padding, stride, dilation, strict=True)
    if transposed and any(o >= max(s, d) for o, s, d in beside):
        raise RuntimeError(
            "output padding must be smaller than either stride or dilation, but got "
            f"output_padding={output_padding}, stride={stride}, dilation={dilation}"
        )
    _check_channels(n, w, groups, transposed)
    sizes = w.type.dims[2:]
    beyond = output_padding if transposed else None
    _check_sizes(n.type.dims[2:], sizes, stride, padding, dilation, beyond)
    how: Convolution
    straight = tuple(range(space + 2))
    if not transposed:
        windows = [
            Window(k, s, p, p, d)
            for k, s, p, d in zip(sizes, stride, padding, dilation, strict=True)
        ]
        kernel = (1, 0, *range(2, space + 2))
        how = Convolution(tuple(windows), straight, kernel, straight, groups)
    else:
        w = _grouped(w, groups)
        windows = []
        for k, s, p, d, o in zip(sizes, stride, padding, dilation, output_padding, strict=True):
            edge = d * (k - 1) - p
            windows.append(Window(k, 1, edge, edge + o, d, s))
        kernel = (0, 1, *range(2, space + 2))
        how = Convolution(tuple(windows), straight, kernel, straight, groups, 1, True)
    out = build.convolution(n, w, how)
    if bias is not None:
        b = convert(node_of(bias), out.type.dtype)
        out = add(out, build.broadcast_in(b, out.type.dims, (1,)))
    return build.reshape(out, out.type.dims[1:]) if unbatched else out


def _check_windows(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> None:
    if min(stride) < 1:
        raise RuntimeError("non-positive stride is not supported")
    if min(padding) < 0:
        raise RuntimeError("negative padding is not supported")
    if min(dilation) < 1:
        raise RuntimeError("dilation should be greater than zero")


def _check_sizes(
    given: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    beyond: Sequence[int] | None,
) -> None:
    """Raise where a convolution computes nothing.

    `beyond` is the output padding of a transposed one.
    """
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    edges = [2 * p for p in padding]
    if beyond is not None:
        grown = [(n - 1) * s + b for n, s, b in zip(given, stride, beyond, strict=True)]
        out = [n + k - e for n, k, e in zip(grown, spans, edges, strict=True)]
        fits = all(n >= 0 for n in out)
        said = (
            f"Given input size per channel: ({_by(given)}). Calculated output size per channel: "
            f"({_by(out)}). Output size is too small"
        )
    else:
        padded = [n + e for n, e in zip(given, edges, strict=True)]
        fits = all(n >= k for n, k in zip(padded, spans, strict=True))
        said = (
            f"Calculated padded input size per channel: ({_by(padded)}). Kernel size: "
            f"({_by(spans)}). Kernel size can't be greater than actual input size"
        )
    if not fits:
        raise RuntimeError(said)
    if not all(given):
        raise RuntimeError(
            "Only zero batch or zero channel inputs are supported, but got input of sizes "
            f"{list(given)}"
        )


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _check_channels(n: Node, w: Node, groups: int, transposed: bool) -> None:
    channels, dims = n.type.dims[1:2], w.type.dims
    if len(n.type.dims) != len(dims):
        raise RuntimeError(
            f"Expected an input of as many dimensions as the weight's {len(dims)}, batched or not"
        )
    taken = (dims[0],) if transposed else (dims[1] * groups,)
    if groups < 1 or dims[0] % groups or channels != taken:
        raise RuntimeError(
            f"Given groups={groups}, a weight of size {list(dims)} does not take an input of size "
            f"{list(n.type.dims)}"
        )


def _grouped(w: Node, groups: int) -> Node:
    """Weights ``[groups * i, o, ...]`` as ``[i, groups * o, ...]``."""
    if groups == 1:
        return w
    rows, columns, *rest = w.type.dims
    w = build.reshape(w, (groups, rows // groups, columns, *rest))
    w = build.transpose(w, (1, 0, *range(2, len(rest) + 3)))
    return build.reshape(w, (rows // groups, groups * columns, *rest))


@rule("convolution_backward", "convolution_backward_overrideable")
def _convolution_backward(
    grad: Placeholder,
    x: Placeholder,
    weight: Placeholder,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Node | None]:
    g, n, w = _alike(grad, x, weight)
    space = len(w.type.dims) - 2
    stride, padding, dilation = (each(v, space) for v in (stride, padding, dilation))
    of_x = of_w = of_bias = None
    if output_mask[0]:
        extra = [
            0 if transposed else size - ((m - 1) * s - 2 * p + d * (k - 1) + 1)
            for size, m, s, p, d, k in zip(
                n.type.dims[2:], g.type.dims[2:], stride, padding, dilation, w.type.dims[2:],
                strict=True,
            )
        ]  # fmt: skip
        of_x = _convolution(
            grad, weight, None, stride, padding, dilation, not transposed, extra, groups
        )
        if transposed:  # the output padding may add whole positions
            of_x = build.slice_to(of_x, n.type.dims)
    if output_mask[1]:
        moved, fixed = (g, n) if transposed else (n, g)
        of_w = _weight_gradient(moved, fixed, w.type.dims[2:], stride, padding, dilation, groups)
    if output_mask[2]:
        dims = (0, *range(2, space + 2))
        of_bias = reduced("add", g, 0, dims)
    return [of_x, of_w, of_bias]


def _weight_gradient(
    x: Node,
    grad: Node,
    sizes: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Node:
    """A convolution over the batch, whose windows are the positions of the first one."""
    space = len(sizes)
    windows: list[Window] = []
    for n, m, k, s, p, d in zip(
        x.type.dims[2:], grad.type.dims[2:], sizes, stride, padding, dilation, strict=True
    ):
        span = (m - 1) * s + 1
        windows.append(Window(m, d, p, (k - 1) * d + span - n - p, s))
    # The channels of x are the batch, and the batch the features that are summed over.
    swapped = (1, 0, *range(2, space + 2))
    kernel = (0, 1, *range(2, space + 2))
    how = Convolution(tuple(windows), swapped, kernel, (0, 1, *range(2, space + 2)), 1, groups)
    out = build.convolution(x, grad, how)
    return build.transpose(out, swapped)


# -- factorisations -------------------------------------------------------------------------------
