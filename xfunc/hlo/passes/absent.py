"""Absent tangents: zeros that stay zero whatever they are multiplied by.

Forward-mode formulas multiply: the tangent of ``a * b`` is ``da * b + a * db``. If `a` is a
constant there is no `da`, and its product with `b` must not be computed: ``0 * inf`` would give
NaN. torch has tensors for that whose product with anything is one of them again, but not on every
device, nor for every product. Here they are marked when they are made, and what is known to be such
a zero is found when a traced function has been lowered.
"""

from __future__ import annotations

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.computation import ComputationBuilder, Value
from xfunc.hlo.edit import bypass, constant, fill, fresh_ids, instruction
from xfunc.hlo.module import Module
from xfunc.hlo.passes.common import dead_code_elimination
from xfunc.hlo.shape import Shape


def absent_tangent(
    body: ComputationBuilder, anchor: Value, *, dims: tuple[int, ...], dtype: torch.dtype
) -> Value:
    """Zeros, marked: it is the name of the computation that marks them."""
    return body.zeros(Shape(dtype, dims))


_NAME = absent_tangent.__name__.encode()


def drop_absent(hlo: bytes) -> bytes:
    """A module in which zeros that are marked are left out of sums, and have spread by products."""
    if _NAME not in hlo:
        return hlo
    proto = pb.HloModuleProto.FromString(hlo)
    computations = {c.id: c for c in proto.computations}
    ids = fresh_ids(proto)
    for c in proto.computations:
        found = _Absent(c, computations)
        if not found.absent:
            continue
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            if i.id in found.absent and not i.shape.tuple_shapes:
                zero = constant(0, next(ids), Shape.from_proto(i.shape).dtype)
                made.append(zero)
                i = instruction("broadcast", i.id, i.shape, [zero.id], of=i)
            made.append(i)
        fill(c, made)
        bypass(c, found.stands_for)
    return dead_code_elimination(Module(proto)).to_bytes()


# Zero if the first operand is.
_LINEAR = frozenset(
    "broadcast convert copy divide dynamic-slice gather get-tuple-element imag negate real reshape "
    "reverse slice transpose".split()
)
_PRODUCTS = frozenset(("multiply", "dot", "convolution"))  # zero if any operand is
_SUMS = frozenset(("add", "subtract", "complex", "concatenate"))  # zero if all operands are
# Zero if those operands are.
_PARTS = {"select": (1, 2), "dynamic-update-slice": (0, 1), "scatter": (0, 2)}


class _Absent:
    """The absent values in a computation.

    Attributes:
        absent: the ids of what is zero.
        stands_for: what is left of sums of which a part is absent.
    """

    def __init__(
        self, c: pb.HloComputationProto, computations: dict[int, pb.HloComputationProto]
    ) -> None:
        self.absent: set[int] = set()
        self.stands_for: dict[int, int] = {}
        self._computations = computations
        for i in c.instructions:
            if i.HasField("sharding") or i.control_predecessor_ids:
                continue
            if self._is_absent(i):
                self.absent.add(i.id)
            elif i.opcode in ("add", "subtract"):
                first, second = i.operand_ids
                if second in self.absent:
                    self.stands_for[i.id] = first
                elif first in self.absent:
                    if i.opcode == "add":
                        self.stands_for[i.id] = second
                    else:
                        i.opcode = "negate"
                        i.operand_ids[:] = [second]

    def _is_absent(self, i: pb.HloInstructionProto) -> bool:
        known = [k in self.absent for k in i.operand_ids]
        if i.opcode == "call":
            callee = self._computations[i.called_computation_ids[0]]
            return callee.name.startswith(absent_tangent.__name__)
        if i.opcode in _LINEAR:
            return known[0]
        if i.opcode in _PRODUCTS:
            return any(known)
        if i.opcode in _SUMS:
            return all(known) and bool(known)
        if i.opcode in _PARTS:
            return all(known[k] for k in _PARTS[i.opcode])
        return i.opcode in ("reduce", "reduce-window") and known[0] and self._adds(i)

    def _adds(self, i: pb.HloInstructionProto) -> bool:
        """Whether a reduction is a sum; torch_xla starts all of those with zero."""
        callee = self._computations[i.called_computation_ids[0]]
        root = next(j for j in callee.instructions if j.id == callee.root_id)
        return root.opcode == "add"
