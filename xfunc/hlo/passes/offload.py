"""Values that are kept in host memory.

A value is sent there, and brought back, by a custom call that XLA's host offloader interprets. XLA
puts the values in between (the stack of a loop, a tuple) into that memory.
"""

from __future__ import annotations

from xfunc.graph.build import CustomCall
from xfunc.graph.node import Node
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.attributes import acting
from xfunc.hlo.edit import bypass
from xfunc.hlo.module import Instruction, Module

DEVICE = "device"

_TARGET = "annotate_device_placement"
_BUFFER = "_xla_buffer_placement"


def place(n: Node, memory: str) -> Node:
    """A value, sent to a memory."""
    result = Node("custom-call", n.type, (n,), CustomCall(_TARGET), more=acting({_BUFFER: memory}))
    result.operation = n.operation
    return result


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
