"""Rules of reductions, and of softmax.

Sums of half precision are accumulated in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xfunc.graph import build
from xfunc.graph.build import Window, add, compare, divide, multiply, select, subtract, unary
from xfunc.graph.node import Node
from xfunc.rules import branches
from xfunc.rules.elementwise import unary_abs
from xfunc.rules.operands import (
    HALF,
    convert,
    dim_of,
    dims_of,
    inexact,
    is_inexact,
    wide,
)
from xfunc.tracer.placeholders import Placeholder
from xfunc.tracer.table import rule

Dims = Sequence[int] | int | None


def reduced(opcode: str, n: Node, start: Any, dims: Sequence[int], keepdim: bool = False) -> Node:
    """A reduction whose sums of half precision are accumulated in float32."""
    dtype = n.type.dtype
    if dtype in HALF and opcode in ("add", "multiply"):
        up = build.convert(n, torch.float32)
        return build.convert(build.reduce(opcode, up, start, dims, keepdim), dtype)
    return build.reduce(opcode, n, start, dims, keepdim)


def lowest(dtype: torch.dtype) -> Any:
    """The least value of a dtype: -inf if it is floating."""
    if dtype.is_floating_point:
        return -math.inf
    return False if dtype is torch.bool else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> Any:
    """The greatest value of a dtype: inf if it is floating."""
    if dtype.is_floating_point:
        return math.inf
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def _summand(x: Placeholder, dtype: torch.dtype | None) -> Node:
    """An operand of a sum: integers are summed as int64."""
    n = x.node
    if dtype is None and not is_inexact(n.type.dtype):
        dtype = torch.int64
    return convert(n, dtype or n.type.dtype)


@rule("sum.dim_IntList", "sum")
def _sum(
    x: Placeholder, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Node:
    n = _summand(x, dtype)
    return reduced("add", n, 0, dims_of(dim, len(n.type.dims)), keepdim)


@rule("prod")
def _prod(x: Placeholder, *, dtype: torch.dtype | None = None) -> Node:
    n = _summand(x, dtype)
    return reduced("multiply", n, 1, dims_of(None, len(n.type.dims)))


@rule("prod.dim_int")
def _prod_dim(
    x: Placeholder, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Node:
    n = _summand(x, dtype)
    return reduced("multiply", n, 1, dims_of(dim, len(n.type.dims)), keepdim)


@rule("mean.dim", "mean")
def _mean(
    x: Placeholder, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Node:
    dtype = dtype or x.dtype
    if not is_inexact(dtype):
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or "
            f"complex dtype. Got: {dtype}"
        )
    n = convert(x.node, dtype)
    n = build.convert(n, wide(dtype))
    dims = dims_of(dim, len(n.type.dims))
    total = build.reduce("add", n, 0, dims, keepdim)
    size = math.prod([n.type.dims[d] for d in dims])
    # Real numbers are divided by 1, too, so that the program is the same for all sizes; of complex
    # numbers this would make NaN of infinity.
    mean = total if size == 1 and dtype.is_complex else divide(total, size)
    return build.convert(mean, dtype)


def _extreme(opcode: str, start: Callable[[torch.dtype], Any], *names: str) -> None:
    @rule(*names)
    def run(x: Placeholder, dim: Dims = (), keepdim: bool = False) -> Node:
        n = x.node
        dims = dims_of(dim, len(n.type.dims))
        if n.type.dtype is torch.bool:
            logic = "or" if opcode == "maximum" else "and"
            return build.reduce(logic, n, opcode != "maximum", dims, keepdim)
        if n.type.dtype.is_complex:
            return NotImplemented
        if any(n.type.dims[d] == 0 for d in dims):
            raise IndexError(f"{names[0]}(): Expected reduction dim to have non-zero size.")
        return build.reduce(opcode, n, start(n.type.dtype), dims, keepdim)


_extreme("maximum", lowest, "amax", "max")
_extreme("minimum", highest, "amin", "min")


def _truth(opcode: str, start: bool, *names: str) -> None:
    @rule(*names)
    def run(x: Placeholder, dim: Dims = None, keepdim: bool = False) -> Node:
        n = convert(x.node, torch.bool)
        # Unlike a sum's, an empty list of dimensions is none of them.
        dims = () if isinstance(dim, Sequence) and not dim else dims_of(dim, len(n.type.dims))
        out = build.reduce(opcode, n, start, dims, keepdim)
        return convert(out, torch.uint8) if x.dtype is torch.uint8 else out


_truth("or", False, "any", "any.dim", "any.dims")
_truth("and", True, "all", "all.dim", "all.dims")


# -- variances ------------------------------------------------------------------------------------


def _moments(
    x: Placeholder, dim: Dims, correction: float | None, keepdim: bool
) -> tuple[Node, Node]:
    """The variance and the mean."""
    dtype = x.dtype
    n = build.convert(x.node, wide(dtype))
    dims = dims_of(dim, len(n.type.dims))
    size = math.prod([n.type.dims[d] for d in dims])
    total = build.reduce("add", n, 0, dims, True)
    mean = divide(total, size)
    rest = subtract(n, build.broadcast(mean, n.type.dims))
    if dtype.is_complex:
        re, im = build.real(rest), build.imag(rest)
        square = add(multiply(re, re), multiply(im, im))
    else:
        square = multiply(rest, rest)
    free = max(0.0, size - (1 if correction is None else correction))
    variance = divide(build.reduce("add", square, 0, dims, True), free)
    if not keepdim:
        kept = tuple([k for d, k in enumerate(n.type.dims) if d not in dims])
        variance, mean = build.reshape(variance, kept), build.reshape(mean, kept)
    return variance, build.convert(mean, dtype)


def _spread(name: str, root: bool, both: bool) -> None:
    @rule(f"{name}.correction")
    def run(
        x: Placeholder,
        dim: Dims = None,
        *,
        correction: float | None = None,
        keepdim: bool = False,
    ) -> Any:
        variance, mean = _moments(x, dim, correction, keepdim)
        out = unary("sqrt", variance) if root else variance
        dtype = x.dtype.to_real() if x.dtype.is_complex else x.dtype
        out = build.convert(out, dtype)
        return (out, mean) if both else out


_spread("var", False, False)
_spread("std", True, False)
_spread("var_mean", False, True)
_spread("std_mean", True, True)


# -- softmax --------------------------------------------------------------------------------------


def _along(x: Placeholder, dim: int, dtype: torch.dtype) -> tuple[Node, int]:
    n = build.convert(x.node, wide(dtype))
    return n, dim_of(dim, len(n.type.dims))


def shifted(n: Node, dims: Sequence[int]) -> Node:
    """n minus its maximum."""
    top = build.reduce("maximum", n, -math.inf, dims, True)
    return subtract(n, build.broadcast(top, n.type.dims))


@rule("_softmax")
def _softmax(x: Placeholder, dim: int, half_to_float: bool = False) -> Node:
    if x.dtype.is_complex:
        return NotImplemented
    n, dim = _along(x, dim, x.dtype)
    if not n.type.dims:
        e = unary("exponential", subtract(n, n))
        return build.convert(e, torch.float32 if half_to_float else x.dtype)
    e = unary("exponential", shifted(n, (dim,)))
    total = build.reduce("add", e, 0, (dim,), True)
    out = divide(e, build.broadcast(total, e.type.dims))
    return build.convert(out, torch.float32 if half_to_float else x.dtype)


@rule("_log_softmax")
def _log_softmax(x: Placeholder, dim: int, half_to_float: bool = False) -> Node:
    if x.dtype.is_complex:
        return NotImplemented
    n, dim = _along(x, dim, x.dtype)
    if not n.type.dims:
        return build.convert(subtract(n, n), torch.float32 if half_to_float else x.dtype)
    rest = shifted(n, (dim,))
    total = build.reduce("add", unary("exponential", rest), 0, (dim,), True)
    out = subtract(rest, build.broadcast(unary("log", total), rest.type.dims))
    return build.convert(out, torch.float32 if half_to_float else x.dtype)


@rule("_softmax_backward_data")
def _softmax_backward(
    grad: Placeholder, out: Placeholder, dim: int, input_dtype: torch.dtype
) -> Node:
    g, dim = _along(grad, dim, out.dtype)
    y = build.convert(out.node, g.type.dtype)
    a = multiply(g, y)
    if not a.type.dims:
        return build.convert(subtract(a, multiply(y, a)), input_dtype)
    total = build.reduce("add", a, 0, (dim,), True)
    result = subtract(a, multiply(y, build.broadcast(total, a.type.dims)))
    return build.convert(result, input_dtype)


@rule("_log_softmax_backward_data")
def _log_softmax_backward(
    grad: Placeholder, out: Placeholder, dim: int, input_dtype: torch.dtype
) -> Node:
    g, dim = _along(grad, dim, out.dtype)
    y = build.convert(out.node, g.type.dtype)
    total = build.reduce("add", g, 0, (dim,), True) if g.type.dims else g
    scaled = multiply(unary("exponential", y), build.broadcast(total, y.type.dims))
    return build.convert(subtract(g, scaled), input_dtype)


@rule("logsumexp")
def _logsumexp(x: Placeholder, dim: Dims, keepdim: bool = False) -> Node:
    dtype = inexact(x.dtype)
    n = build.convert(convert(x.node, dtype), wide(dtype))
    dims = dims_of(dim, len(n.type.dims))
    top = build.reduce("maximum", build.real(n), -math.inf, dims, True)
    finite = compare(unary_abs(top), math.inf, "NE")  # NaN stays
    top = convert(select(finite, top, 0), n.type.dtype)
    e = unary("exponential", subtract(n, build.broadcast(top, n.type.dims)))
    total = build.reduce("add", e, 0, dims, True)
    log = branches.logarithm(total) if dtype.is_complex else unary("log", total)
    out = build.convert(add(log, top), dtype)
    if keepdim:
        return out
    return build.reshape(out, tuple([k for d, k in enumerate(n.type.dims) if d not in dims]))


# -- running sums ---------------------------------------------------------------------------------


def _running(name: str, opcode: str, start: int) -> None:
    @rule(name)
    def run(x: Placeholder, dim: int, *, dtype: torch.dtype | None = None) -> Node:
        n = _summand(x, dtype)
        dims = n.type.dims
        if not dims or not math.prod(dims):
            return n
        if opcode == "multiply" and not is_inexact(n.type.dtype):
            return NotImplemented
        dim = dim_of(dim, len(dims))
        windows = [Window(1)] * len(dims)
        windows[dim] = Window(dims[dim], low=dims[dim] - 1)
        up = build.convert(n, wide(n.type.dtype))
        return build.convert(build.reduce_window(opcode, up, start, tuple(windows)), n.type.dtype)


_running("cumsum", "add", 0)
_running("cumprod", "multiply", 1)
