"""`hide_constraints`: hides from the partitioner how the results of branches are sharded.

If they are constrained to different shardings, XLA (jaxlib 0.10.2, by GSPMD and by Shardy) gives
the branches of one conditional these shardings as their results', which its verifier refuses;
`jax.lax.cond` of two functions that constrain their results likewise.
"""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import called_from, fill, fresh_ids, instruction


def hide_constraints(proto: pb.HloModuleProto) -> None:
    """Put the results of branches that constrain something behind a barrier, in place."""
    by_id = {c.id: c for c in proto.computations}
    constrains = {c.id for c in proto.computations if any(map(_is_constraint, c.instructions))}
    branches = {
        k
        for c in proto.computations
        for i in c.instructions
        if i.opcode == "conditional"
        for k in i.called_computation_ids
    }
    ids = fresh_ids(proto)
    for k in branches if constrains else ():
        c = by_id[k]
        root = next(i for i in c.instructions if i.id == c.root_id)
        if root.opcode != "opt-barrier" and not constrains.isdisjoint(called_from(proto, k)):
            barrier = instruction("opt-barrier", next(ids), root.shape, [root.id], root)
            fill(c, [*c.instructions, barrier])
            c.root_id = barrier.id


def _is_constraint(i: pb.HloInstructionProto) -> bool:
    return i.opcode == "custom-call" and i.custom_call_target == "Sharding"
