"""Scatters that XLA's partitioner handles correctly for every sharding of their operands.

`hide_positions`: hides from the partitioner how the indices of a scatter are computed.

Where one of the indices is the position along a dimension, as in torch's scatters along a
dimension, XLA (torch_xla 2.9, jaxlib 0.7.1) divides arrays and updates along that dimension
together. For some shardings the result is wrong, by GSPMD and by Shardy. `.at` of JAX hides
positions too, behind a reshape; its scatters with batching dimensions are wrong. Gathers are right.

`divide_evenly`: where devices divide updates unevenly, a scatter includes the padding of the last
part: zeros, or values computed from zeros, such as a comparison with zero. So the updates of
products, minima and maxima, and their indices, are extended to sizes that the devices divide
evenly, at a place out of bounds, where nothing is written. Sums, which are more frequent, take in
zeros: all updates beyond the size are, by a choice that XLA makes for each element where it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import wire
from xfunc.hlo.edit import constant, fill, fresh_ids, instruction
from xfunc.hlo.shape import Shape
from xfunc.hlo.write import padding

_DIMENSIONS = 48  # the field of an instruction with the dimensions of a scatter, by XLA's hlo.proto


def hide_positions(proto: pb.HloModuleProto) -> None:
    """Put the indices of scatters behind a barrier, in place."""
    ids = fresh_ids(proto)
    for c in proto.computations:
        if not any(i.opcode == "scatter" for i in c.instructions):
            continue
        by_id = {i.id: i for i in c.instructions}
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            if i.opcode == "scatter":
                k = len(i.operand_ids) // 2  # after the arrays, before as many updates
                indices = by_id[i.operand_ids[k]]
                if indices.opcode != "opt-barrier":
                    barrier = instruction("opt-barrier", next(ids), indices.shape, [indices.id], i)
                    i.operand_ids[k] = barrier.id
                    made.append(barrier)
            made.append(i)
        if len(made) > len(c.instructions):
            fill(c, made)


def divide_evenly(proto: pb.HloModuleProto, count: int) -> None:
    """Let so many devices divide the updates of scatters in any way, in place."""
    ids = fresh_ids(proto)
    roots = {c.id: next(i for i in c.instructions if i.id == c.root_id) for c in proto.computations}
    for c in proto.computations:
        by_id = {i.id: i for i in c.instructions}
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            if i.opcode == "scatter" and len(i.operand_ids) == 3:
                combined = roots[i.called_computation_ids[0]].opcode
                if combined in ("add", "or"):
                    made += _zeros_beyond(i, by_id, count, ids)
                elif combined in ("and", "multiply", "minimum", "maximum"):
                    made += _extended(i, by_id, count, ids)
            made.append(i)
        if len(made) > len(c.instructions):
            fill(c, made)


def _across(i: pb.HloInstructionProto, updates: pb.HloInstructionProto) -> list[int]:
    """The dimensions of a scatter's updates that are those of its indices, in order."""
    window = wire.integers(wire.message(wire.fields(i.SerializeToString()), _DIMENSIONS), 1)
    return [k for k in range(len(updates.shape.dimensions)) if k not in window]


def _zeros_beyond(
    i: pb.HloInstructionProto,
    by_id: dict[int, pb.HloInstructionProto],
    count: int,
    ids: Iterator[int],
) -> list[pb.HloInstructionProto]:
    updates = by_id[i.operand_ids[2]]
    if updates.opcode == "select" and _depends_on_place(by_id[updates.operand_ids[0]], by_id):
        return []  # done before
    shape = Shape.from_proto(updates.shape)
    result: list[pb.HloInstructionProto] = []

    def add(opcode: str, dtype: torch.dtype, *operands: int) -> pb.HloInstructionProto:
        result.append(instruction(opcode, next(ids), Shape(dtype, shape.dims).proto, operands, i))
        return result[-1]

    def everywhere(value: float, dtype: torch.dtype) -> int:
        result.append(constant(value, next(ids), dtype, i))
        return add("broadcast", dtype, result[-1].id).id

    for d in _across(i, updates):
        if shape.dims[d] % count and math.prod(shape.dims):
            place = add("iota", torch.int32)
            place.dimensions.append(d)
            inside = add("compare", torch.bool, place.id, everywhere(shape.dims[d], torch.int32))
            inside.comparison_direction = "LT"
            zero = everywhere(0, shape.dtype)
            i.operand_ids[2] = add("select", shape.dtype, inside.id, i.operand_ids[2], zero).id
    return result


def _depends_on_place(i: pb.HloInstructionProto, by_id: dict[int, pb.HloInstructionProto]) -> bool:
    return i.opcode == "compare" and by_id[i.operand_ids[0]].opcode == "iota"


def _extended(
    i: pb.HloInstructionProto,
    by_id: dict[int, pb.HloInstructionProto],
    count: int,
    ids: Iterator[int],
) -> list[pb.HloInstructionProto]:
    dimensions = wire.message(wire.fields(i.SerializeToString()), _DIMENSIONS)
    if wire.integers(dimensions, 5):  # dimensions that the array and the indices have in common
        return []
    vector = wire.integer(dimensions, 4)
    _, indices, updates = (by_id[k] for k in i.operand_ids)
    along = [k for k in range(len(indices.shape.dimensions)) if k != vector]
    across = _across(i, updates)
    more = [-indices.shape.dimensions[k] % count for k in along]
    if not any(more) or not math.prod(indices.shape.dimensions):
        return []
    result: list[pb.HloInstructionProto] = []
    for k, x, value, places in ((1, indices, -1, along), (2, updates, 0, across)):
        fills = constant(value, next(ids), Shape.from_proto(x.shape).dtype, i)
        shape = Shape.from_proto(x.shape)
        added = dict(zip(places, more, strict=True))
        sizes = [n + added.get(d, 0) for d, n in enumerate(shape.dims)]
        padded = instruction("pad", next(ids), Shape(shape.dtype, sizes).proto, [x.id, fills.id], i)
        padded.MergeFromString(padding((0, added.get(d, 0), 0) for d in range(len(sizes))))
        i.operand_ids[k] = padded.id
        result += [fills, padded]
    return result
