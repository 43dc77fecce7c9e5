"""Scatters that XLA's partitioner computes rightly for every sharding of their operands.

`hide_positions`: the partitioner does not see what the indices of a scatter are made of.

Where one of the indices is the position along a dimension, as in torch's scatters along a
dimension, XLA (torch_xla 2.9, jaxlib 0.7.1) divides arrays and updates along that dimension
together. For some shardings the result is wrong, by GSPMD and by Shardy. `.at` of JAX hides
positions too, behind a reshape; its scatters with batching dimensions are wrong. Gathers are right.

`divide_evenly`: where devices divide indices unevenly, products, minima and maxima take in the
numbers that fill the last part. So indices and updates are extended to sizes that the devices
divide evenly, at a place out of bounds, where nothing is written. A sum takes in zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

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
    """Extend the indices and updates of scatters for so many devices, in place."""
    ids = fresh_ids(proto)
    roots = {c.id: next(i for i in c.instructions if i.id == c.root_id) for c in proto.computations}
    for c in proto.computations:
        by_id = {i.id: i for i in c.instructions}
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            combined = i.opcode == "scatter" and roots[i.called_computation_ids[0]].opcode
            if combined in ("multiply", "minimum", "maximum") and len(i.operand_ids) == 3:
                made += _extended(i, by_id, count, ids)
            made.append(i)
        if len(made) > len(c.instructions):
            fill(c, made)


def _extended(
    i: pb.HloInstructionProto,
    by_id: dict[int, pb.HloInstructionProto],
    count: int,
    ids: Iterator[int],
) -> list[pb.HloInstructionProto]:
    dimensions = wire.message(wire.fields(i.SerializeToString()), _DIMENSIONS)
    window, vector = wire.integers(dimensions, 1), wire.integer(dimensions, 4)
    if wire.integers(dimensions, 5):  # dimensions that the array and the indices have in common
        return []
    _, indices, updates = (by_id[k] for k in i.operand_ids)
    along = [k for k in range(len(indices.shape.dimensions)) if k != vector]
    across = [k for k in range(len(updates.shape.dimensions)) if k not in window]
    more = [-indices.shape.dimensions[k] % count for k in along]
    if not any(more) or not math.prod(indices.shape.dimensions):
        return []
    made: list[pb.HloInstructionProto] = []
    for k, x, value, places in ((1, indices, -1, along), (2, updates, 0, across)):
        fills = constant(value, next(ids), Shape.from_proto(x.shape).dtype, i)
        shape = Shape.from_proto(x.shape)
        added = dict(zip(places, more, strict=True))
        sizes = [n + added.get(d, 0) for d, n in enumerate(shape.dims)]
        padded = instruction("pad", next(ids), Shape(shape.dtype, sizes).proto, [x.id, fills.id], i)
        padded.MergeFromString(padding((0, added.get(d, 0), 0) for d in range(len(sizes))))
        i.operand_ids[k] = padded.id
        made += [fills, padded]
    return made
