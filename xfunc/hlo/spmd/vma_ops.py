"""The marks of `vma`, one class each: its type, and the operation that it stands for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch

from xfunc.graph import build
from xfunc.graph.build import CustomCall
from xfunc.graph.node import ArrayType, Node, array_type
from xfunc.hlo.spmd.varying import Axes

TARGET = "xfunc_vma_"
"""The prefix of the targets of marks."""

Total = Callable[[Node, Sequence[str]], Node]
"""The sum of a value over axes."""


@dataclasses.dataclass(frozen=True)
class VmaOp:
    """A mark, apart from its operands and axes."""

    name: ClassVar[str]

    def type(self, operand: ArrayType) -> ArrayType:
        """The type of its result, given that of its first operand."""
        return operand

    def type_of(self, own: Axes, witnesses: Sequence[Axes], axes: Axes) -> Axes:
        """The type of its result, given the types of its operands and the mark's own axes."""
        return own


class Type(VmaOp):
    """A witness of the type of a value."""

    name = "type"

    def type(self, operand: ArrayType) -> ArrayType:
        return array_type(torch.bool, ())


class Cast(VmaOp):
    """The same value, with another type."""

    name = "cast"

    def type_of(self, own: Axes, witnesses: Sequence[Axes], axes: Axes) -> Axes:
        return own | (witnesses[0] & axes if witnesses else axes)


class Operation(VmaOp):
    """Stands for an operation over those axes along which no witness varies."""

    def of(self, x: Node, axes: Sequence[str], sizes: Mapping[str, int], total: Total) -> Node:
        """The result of the operation over axes of the given sizes."""
        raise NotImplementedError


class Sum(Operation):
    """The sum of a value."""

    name = "total"

    def type_of(self, own: Axes, witnesses: Sequence[Axes], axes: Axes) -> Axes:
        return own - axes | witnesses[0] & axes

    def of(self, x: Node, axes: Sequence[str], sizes: Mapping[str, int], total: Total) -> Node:
        return total(x, axes)


class Share(Operation):
    """A value divided by the number of devices."""

    name = "share"

    def of(self, x: Node, axes: Sequence[str], sizes: Mapping[str, int], total: Total) -> Node:
        return build.multiply(x, 1 / math.prod(sizes[a] for a in axes))


TYPE, CAST, SUM, SHARE = Type(), Cast(), Sum(), Share()
_BY_TARGET: dict[str, VmaOp] = {TARGET + m.name: m for m in (TYPE, CAST, SUM, SHARE)}


def vma_op_of(n: Node) -> VmaOp | None:
    """The mark that a node represents, if any."""
    return _BY_TARGET.get(n.params.target) if isinstance(n.params, CustomCall) else None
