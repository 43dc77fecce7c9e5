"""Optimisation barriers on targets that ignore them."""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb


def outline_barriers(proto: pb.HloModuleProto, *, partitioned: bool) -> None:
    """Turn computations after a barrier into functions that XLA does not inline, in place.

    XLA's CPU target removes barriers before it merges equal instructions for the last time. Without
    this pass it would merge a recomputed value with that of the forward pass, which would then be
    kept; and it would compute a value that is to be computed once again in each fusion. XLA neither
    merges nor fuses instructions of different computations.

    In a module for several devices (`partitioned`), XLA respects barriers when it merges, but not
    when it fuses. There only functions that consist of nothing but a barrier are outlined.
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


def is_barrier(c: pb.HloComputationProto) -> bool:
    """Whether a function consists of nothing but a barrier."""
    opcodes = {i.opcode for i in c.instructions}
    return "opt-barrier" in opcodes and opcodes <= _PASSING
