"""Rules of comparisons, of logic, and of choices by a mask."""

from __future__ import annotations

import torch

from xfunc.graph import build
from xfunc.graph.build import Number, binary, select
from xfunc.graph.node import Node, array_type
from xfunc.rules.operands import (
    Operand,
    as_node,
    broadcast_dims,
    convert,
    is_inexact,
    kind_of,
    number,
    pair,
    promoted,
    scalar_type_name,
    together,
)
from xfunc.tracer.placeholders import Placeholder, node_of
from xfunc.tracer.table import rule


def _equal_as_complex32(a: Operand, b: Operand) -> Node:
    """``a == b`` of complex numbers of float16, which XLA lacks: by their parts."""
    x, y = together(torch.complex64, a, b)
    re, im = (
        build.compare(convert(part(x), torch.float16), convert(part(y), torch.float16), "EQ")
        for part in (build.real, build.imag)
    )
    return build.and_(re, im)


def _comparison(name: str, direction: str) -> None:
    @rule(f"{name}.Tensor", f"{name}.Scalar")
    def run(a: Operand, b: Operand) -> Node:
        if direction in ("EQ", "NE") and promoted(kind_of(a), kind_of(b)) is torch.complex32:
            equal = _equal_as_complex32(a, b)
            return equal if direction == "EQ" else build.not_(equal)
        x, y = pair(a, b)
        if x.type.dtype.is_complex and direction not in ("EQ", "NE"):
            return NotImplemented
        return Node("compare", array_type(torch.bool, x.type.dims), (x, y), direction)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name, _name.upper())


def _truth(x: Operand) -> Node:
    n = node_of(x) if isinstance(x, torch.Tensor) else build.constant(bool(x), torch.bool)
    return convert(n, torch.bool)


def _bitwise(opcode: str) -> None:
    @rule(*(f"bitwise_{opcode}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor")))
    def bits(a: Operand, b: Operand) -> Node:
        x, y = pair(a, b)
        return NotImplemented if is_inexact(x.type.dtype) else Node(opcode, x.type, (x, y))

    @rule(f"logical_{opcode}")
    def logic(a: Operand, b: Operand) -> Node:
        x, y = (_truth(v) for v in (a, b))
        dims = broadcast_dims(x.type.dims, y.type.dims)
        return binary(opcode, build.broadcast(x, dims), build.broadcast(y, dims))


for _opcode in ("and", "or", "xor"):
    _bitwise(_opcode)


@rule("bitwise_not")
def _bitwise_not(x: Placeholder) -> Node:
    return NotImplemented if is_inexact(x.dtype) else build.not_(x.node)


@rule("logical_not")
def _logical_not(x: Placeholder) -> Node:
    return build.not_(convert(x.node, torch.bool))


@rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(c: Placeholder, a: Operand, b: Operand) -> Node:
    if c.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError(
            "where expected condition to be a boolean tensor, but got a tensor with dtype "
            f"{scalar_type_name(c.dtype)}"
        )
    x, y = pair(a, b)
    condition = convert(node_of(c), torch.bool)
    dims = broadcast_dims(condition.type.dims, x.type.dims)
    x, y = build.broadcast(x, dims), build.broadcast(y, dims)
    return Node("select", x.type, (build.broadcast(condition, dims), x, y))


@rule("masked_fill.Scalar")
def _masked_fill(x: Placeholder, mask: Placeholder, value: Number) -> Node:
    n, m = x.node, node_of(mask)
    dims = broadcast_dims(n.type.dims, m.type.dims)
    n = build.broadcast(n, dims)
    return select(build.broadcast(m, dims), number(value, n.type.dtype), n)


@rule("masked_fill.Tensor")
def _masked_fill_by(x: Placeholder, mask: Placeholder, value: torch.Tensor) -> Node:
    if value.ndim:
        raise RuntimeError(
            "masked_fill only supports a 0-dimensional value tensor, but got tensor with "
            f"{value.ndim} dimension(s)."
        )
    if value.is_complex() and not (x.is_complex() or x.dtype is torch.bool):
        raise RuntimeError(f"value of {value.dtype} cannot be converted to {x.dtype}")
    n, m = x.node, node_of(mask)
    dims = broadcast_dims(n.type.dims, m.type.dims)
    v = build.broadcast(as_node(value, n.type.dtype), dims)
    return select(build.broadcast(m, dims), v, build.broadcast(n, dims))
