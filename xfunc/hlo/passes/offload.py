"""Values that are kept in host memory.

A value is sent there, and brought back, by a custom call that XLA's host offloader interprets. XLA
puts the values in between (the stack of a loop, a tuple) into that memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import bypass, entry_of, fill, fresh_ids, instruction
from xfunc.hlo.module import Instruction, Module
from xfunc.hlo.shape import Shape

DEVICE = "device"

_TARGET = "annotate_device_placement"
_BUFFER = "_xla_buffer_placement"


def sent(module: Module, results: Mapping[int, str]) -> Module:
    """The module with some of its results, by number, sent to a memory."""
    proto, entry, ids = _copy(module)
    root = next(i for i in entry.instructions if i.id == entry.root_id)
    operands = list(root.operand_ids)
    calls: list[pb.HloInstructionProto] = []
    for k, memory in results.items():
        calls.append(_place(next(ids), operands[k], module.entry.root.operands[k].shape, memory))
        operands[k] = calls[-1].id
    before = [i for i in entry.instructions if i.id != entry.root_id]
    new_root = pb.HloInstructionProto()
    new_root.CopyFrom(root)
    new_root.operand_ids[:] = operands
    fill(entry, [*before, *calls, new_root])
    return Module(proto)


def brought(module: Module, parameters: Mapping[int, str]) -> Module:
    """The module with some of its parameters, by number, brought to a memory first."""
    proto, entry, ids = _copy(module)
    made: list[pb.HloInstructionProto] = []
    there: dict[int, int] = {}
    shapes = {p.parameter_number: p.shape for p in module.entry.parameters}
    for i in entry.instructions:
        copy = pb.HloInstructionProto()
        copy.CopyFrom(i)
        if any(k in there for k in copy.operand_ids):
            copy.operand_ids[:] = [there.get(k, k) for k in copy.operand_ids]
        made.append(copy)
        if i.opcode == "parameter" and i.parameter_number in parameters:
            k = i.parameter_number
            made.append(_place(next(ids), i.id, shapes[k], parameters[k]))
            there[i.id] = made[-1].id
    entry.root_id = there.get(entry.root_id, entry.root_id)
    fill(entry, made)
    return Module(proto)


def strip_offload(proto: pb.HloModuleProto) -> None:
    """Leave all values where they are, in place: for targets with a single memory."""
    for c in proto.computations:
        sent = [i for i in c.instructions if i.custom_call_target == _TARGET]
        bypass(c, {i.id: i.operand_ids[0] for i in sent})


def without_offload(module: Module) -> Module:
    """The module with all values where they are; see `strip_offload`."""
    if not any(is_placement(i) for c in module.computations for i in c.instructions):
        return module
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    strip_offload(proto)
    return Module(proto)


def is_placement(i: Instruction, memory: str | None = None) -> bool:
    """Whether an instruction sends a value to a memory, of this name if one is given."""
    if i.opcode != "custom-call" or i.proto.custom_call_target != _TARGET:
        return False
    return memory in (None, i.proto.frontend_attributes.map.get(_BUFFER, DEVICE))


def is_on_host(i: Instruction) -> bool:
    """Whether a value is in host memory, in a module without calls."""
    while True:
        of = i.operands
        match i.opcode:
            case "custom-call":
                return is_placement(i) and not is_placement(i, DEVICE)
            case "get-tuple-element" if of[0].opcode == "tuple":
                i = of[0].operands[i.proto.tuple_index]
            case "get-tuple-element" if of[0].opcode == "while":
                root = of[0].called_computations[0].root
                if root.opcode != "tuple":
                    return False
                i = root.operands[i.proto.tuple_index]
            case "dynamic-update-slice":
                i = of[1]
            case "reshape" | "bitcast" | "broadcast" if of:
                i = of[0]
            case _:
                return False


def _copy(module: Module) -> tuple[pb.HloModuleProto, pb.HloComputationProto, Iterator[int]]:
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    return proto, entry_of(proto), fresh_ids(proto)


def _place(id: int, operand: int, shape: Shape, memory: str) -> pb.HloInstructionProto:
    proto = instruction("custom-call", id, shape.proto, [operand])
    proto.custom_call_target, proto.custom_call_api_version = _TARGET, 1
    proto.custom_call_has_side_effect = True
    proto.frontend_attributes.map[_BUFFER] = memory
    return proto
