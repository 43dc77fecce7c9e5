"""`hide_positions`: XLA's partitioner does not see what the indices of a scatter are made of.

Where one of the indices is the position along a dimension, as in torch's scatters along a
dimension, XLA (torch_xla 2.9, jaxlib 0.7.1) divides arrays and updates along that dimension
together. For some shardings the result is wrong, by GSPMD and by Shardy. `.at` of JAX hides
positions too, behind a reshape; its scatters with batching dimensions are wrong. Gathers are right.
"""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import fill, fresh_ids, instruction


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
