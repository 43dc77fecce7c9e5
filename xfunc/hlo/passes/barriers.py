"""Optimisation barriers on targets that ignore them."""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb


def outline_barriers(proto: pb.HloModuleProto, *, partitioned: bool) -> None:
    """Turn computations after a barrier into functions that XLA does not inline, in place.

    XLA's CPU target removes barriers before it merges equal instructions for the last time;
    recomputed values would be merged with those of the forward pass, and be kept. Values to compute
    once would be computed again in other fusions. It neither merges nor fuses the instructions of
    two computations.

    If the module is `partitioned`, for several devices, XLA heeds barriers where it merges, but not
    where it fuses: then only functions that are nothing but a barrier are outlined.
    """
    behind = {
        c.id
        for c in proto.computations
        if "opt-barrier" in (opcodes := {i.opcode for i in c.instructions})
        and not (partitioned and opcodes - _PASSING)
    }
    if not behind:
        return
    for c in proto.computations:
        for i in c.instructions:
            if i.opcode == "call" and i.called_computation_ids[0] in behind:
                i.frontend_attributes.map["inlineable"] = "false"


_PASSING = {"parameter", "tuple", "opt-barrier", "get-tuple-element"}
