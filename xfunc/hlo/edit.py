"""Changes to the protobuf of a computation, in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xfunc.hlo import hlo_pb2 as pb


def bypass(c: pb.HloComputationProto, stands_for: Mapping[int, int]) -> None:
    """Remove instructions, and let the users of each use another one instead.

    Args:
        c: the computation.
        stands_for: by the id of an instruction to be removed, the id of the other, which may be
            removed too.
    """
    if not stands_for:
        return

    def end(k: int) -> int:
        while k in stands_for:
            k = stands_for[k]
        return k

    for i in c.instructions:
        for ids in (i.operand_ids, i.control_predecessor_ids):
            if any(k in stands_for for k in ids):
                ids[:] = [end(k) for k in ids]
    c.root_id = end(c.root_id)
    fill(c, (i for i in c.instructions if i.id not in stands_for))


def fill(c: pb.HloComputationProto, instructions: Iterable[pb.HloInstructionProto]) -> None:
    """Let a computation consist of these instructions, which may be its own."""
    new = pb.HloComputationProto()
    new.instructions.extend(instructions)  # copies, before the old ones go
    del c.instructions[:]
    c.instructions.MergeFrom(new.instructions)


def renumber_parameters(proto: pb.HloModuleProto, numbers: Sequence[int]) -> None:
    """Let parameter ``numbers[k]`` of a module's entry be parameter k."""
    (entry,) = (c for c in proto.computations if c.id == proto.entry_computation_id)
    new = {old: k for k, old in enumerate(numbers)}
    for i in entry.instructions:
        if i.opcode == "parameter":
            i.parameter_number = new[i.parameter_number]
    for shape in (entry.program_shape, proto.host_program_shape):
        shapes, names = list(shape.parameters), list(shape.parameter_names)
        copied = pb.ProgramShapeProto(
            parameters=[shapes[k] for k in numbers],
            parameter_names=[names[k] for k in numbers] if names else [],
        )
        del shape.parameters[:]
        del shape.parameter_names[:]
        shape.MergeFrom(copied)
