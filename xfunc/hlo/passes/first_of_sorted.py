"""`hide_sorts`: hides from the partitioner that a slice takes the first elements of a sorted array.

XLA's partitioner (jaxlib 0.10.2) gives such a slice the shape of the array, which its verifier
refuses, where the sorted dimension is divided among so many devices that one has hardly more
elements than are taken; JAX's `lax.sort(x)[:, :2]` likewise: of shape (2, 8), sharded as ``P(None,
"a")`` on 8 devices, with a result that a constraint makes whole. Devices with many more elements
are not affected: each sorts its own, and only the first ones are gathered, as before.
"""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import fill, fresh_ids, instruction


def hide_sorts(proto: pb.HloModuleProto, count: int) -> None:
    """Put sorted arrays with few elements per device behind a barrier."""
    ids = fresh_ids(proto)
    for c in proto.computations:
        if not any(i.opcode == "sort" for i in c.instructions):
            continue
        by_id = {i.id: i for i in c.instructions}
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            if i.opcode == "slice" and _takes_first(i, by_id, count):
                values = by_id[i.operand_ids[0]]
                barrier = instruction("opt-barrier", next(ids), values.shape, [values.id], i)
                i.operand_ids[0] = barrier.id
                made.append(barrier)
            made.append(i)
        if len(made) > len(c.instructions):
            fill(c, made)


def _takes_first(
    i: pb.HloInstructionProto, by_id: dict[int, pb.HloInstructionProto], count: int
) -> bool:
    """Whether a slice takes as many of the first elements in order as a device may have."""
    values = by_id[i.operand_ids[0]]
    sort = by_id[values.operand_ids[0]] if values.opcode == "get-tuple-element" else values
    if sort.opcode != "sort":
        return False
    (dim,) = sort.dimensions
    part = i.slice_dimensions[dim]
    size = values.shape.dimensions[dim]
    return part.start == 0 and part.limit < size and part.limit >= size // count
