"""Optimisation barriers on targets that ignore them."""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb


def hold_barriers(proto: pb.HloModuleProto) -> None:
    """Turn computations after a barrier into functions that XLA does not inline, in place.

    XLA's CPU target removes barriers before it merges equal instructions for the last time;
    recomputed values would be merged with those of the forward pass, and be kept. It does not merge
    the instructions of two computations.
    """
    behind = {
        c.id for c in proto.computations if any(i.opcode == "opt-barrier" for i in c.instructions)
    }
    if not behind:
        return
    for c in proto.computations:
        for i in c.instructions:
            if i.opcode == "call" and i.called_computation_ids[0] in behind:
                i.frontend_attributes.map["inlineable"] = "false"
