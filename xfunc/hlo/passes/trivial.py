"""Instructions that change nothing, left out of what torch_xla records.

torch_xla 2.9 multiplies the second term of every sum by its `alpha`, also if that is 1, and expands
values in up to four steps, of which most give the shape that there was. That is a fifth of all
instructions of a train step: each pass would read them, and XLA would remove them.

NOTE [trivial at any size]: a product or a reshape of the user's may change nothing by coincidence,
at one size of its arguments. It stays: programs of dynamic shapes are made from traces at several
sizes, which must have the same instructions. (An `alpha` of the user's that is 1 at one size goes:
nothing tells it from torch_xla's.)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import opcodes
from xfunc.hlo.edit import entry_of, origin, remove, unused
from xfunc.hlo.literal import scalar_literal
from xfunc.hlo.shape import Shape

# See NOTE [trivial at any size]. These are trivial at all sizes or at none.
_SHAPES = frozenset(("broadcast", "transpose"))
_SUMS, _EXPANSION = frozenset(("aten__add", "aten__sub")), "aten__expand"


def drop_trivial(proto: pb.HloModuleProto) -> None:
    """Leave out such instructions of a module's entry, in place."""
    c = entry_of(proto)
    by_id: dict[int, pb.HloInstructionProto] = {}
    operands: dict[int, list[int]] = {}
    stands_for: dict[int, int] = {}
    candidates: set[int] = set()
    for i in c.instructions:
        k, opcode = i.id, i.opcode
        if opcode in opcodes.LEAVES:
            by_id[k], operands[k] = i, []
            continue
        ids = i.operand_ids[:]  # See NOTE [slices of fields].
        if not stands_for.keys().isdisjoint(ids):
            i.operand_ids[:] = ids = [origin(j, stands_for) for j in ids]
        if opcode == "multiply":
            if i.metadata.op_type in _SUMS and _is_one(by_id[ids[1]], by_id):
                stands_for[k] = ids[0]
                candidates.update((ids[1], *operands[ids[1]]))
        elif opcode in _SHAPES or (opcode == "reshape" and i.metadata.op_type == _EXPANSION):
            x = by_id[ids[0]]
            if _is_same(i, x):
                stands_for[k] = ids[0]
            elif opcode == x.opcode == "reshape" and x.metadata.op_type == _EXPANSION:
                candidates.add(ids[0])
                (whole,) = operands[ids[0]]
                if _is_same(i, by_id[whole]):
                    stands_for[k] = whole
                else:
                    i.operand_ids[:] = ids = [whole]
        by_id[k], operands[k] = i, ids
    c.root_id = origin(c.root_id, stands_for)

    for k in stands_for:
        del operands[k]
    remove(c, {*stands_for, *unused(operands, c.root_id, candidates)}, by_id)


def _is_same(i: pb.HloInstructionProto, x: pb.HloInstructionProto) -> bool:
    """Whether a reshape, broadcast or transpose of a value is that value."""
    if i.shape != x.shape:
        return False
    return i.opcode == "reshape" or i.dimensions[:] == [*range(len(i.shape.dimensions))]


def _is_one(x: pb.HloInstructionProto, by_id: Mapping[int, pb.HloInstructionProto]) -> bool:
    """Whether a value is a constant 1, or is filled with it."""
    if x.opcode == "broadcast":
        x = by_id[x.operand_ids[0]]
    if x.opcode != "constant" or x.shape.dimensions:
        return False
    data = pb.LiteralProto()
    data.CopyFrom(x.literal)
    data.ClearField("shape")  # whose layout may be written in several ways
    return data == _one(x.shape.element_type)


@functools.cache
def _one(element_type: pb.PrimitiveType) -> pb.LiteralProto:
    """The data of a constant 1."""
    dtype = Shape.from_proto(pb.ShapeProto(element_type=element_type)).dtype
    data = pb.LiteralProto()
    data.CopyFrom(scalar_literal(1, dtype))
    data.ClearField("shape")
    return data
