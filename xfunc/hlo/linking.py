"""Calls of whole modules in a module that a tracer records.

NOTE [recorded calls]: a tracer could take in each module that is applied. It would read and check
it, and write all of it again with what it recorded. So an application is recorded as a custom call
of no module but a number, and `link` adds the module itself afterwards: once, however often it is
called. The target of the custom call has the number, and the types of the results: torch_xla 2.9
remembers the types of all custom calls with the same target and operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import opcodes
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import entry_of, instruction, rename_operation, renamed
from xfunc.hlo.module import Module

_TARGET = "xfunc_call_"


def target(number: int, types: Sequence[object]) -> str:
    """The target of the custom call that records the application of a module.

    Args:
        number: of the module.
        types: of its results, in an order; equal ones have equal texts.
    """
    return f"{_TARGET}{number}:{' '.join(map(str, types))}"


def link(contents: Contents, applied: Sequence[tuple[str, Module]]) -> None:
    """Turn the recorded applications in a module's entry into calls, in place.

    Args:
        contents: of the module.
        applied: the modules that may be applied, by number, with their names in metadata. One
            with a single result may return it in a tuple or not.
    """
    entry = entry_of(contents.proto)
    found = contents.of(entry, ("custom-call",)) if applied else ()
    if recorded := [i for i in found if i.custom_call_target.startswith(_TARGET)]:
        _Linker(contents, applied).run(entry, recorded)


class _Linker:
    """Adds modules to another one."""

    def __init__(self, contents: Contents, applied: Sequence[tuple[str, Module]]) -> None:
        self._contents, self._applied = contents, applied
        self._callees: dict[int, pb.HloComputationProto] = {}

    def run(self, entry: pb.HloComputationProto, recorded: list[pb.HloInstructionProto]) -> None:
        single: dict[int, pb.HloInstructionProto] = {}
        names: dict[int, str] = {}
        for i in recorded:
            number = int(i.custom_call_target.removeprefix(_TARGET).partition(":")[0])
            name = names[i.id] = f"xfunc__{self._applied[number][0]}"
            rename_operation(i, name)
            call = self._call(i, number)
            if i.shape.element_type == call.shape.element_type:
                i.CopyFrom(call)
            else:
                single[i.id] = call
        for i in self._contents.of(entry, ("get-tuple-element",)):
            if (name := names.get(i.operand_ids[0])) is not None:
                rename_operation(i, name)
        if single:
            places = [(k, i) for k, i in enumerate(entry.instructions) if i.id in single]
            for place, i in reversed(places):  # The recorded value is an element of the call's.
                call, call.id = single[i.id], next(self._contents.ids)
                call.name = f"call.{call.id}"
                i.CopyFrom(instruction("get-tuple-element", i.id, i.shape, [call.id], of=i))
                entry.instructions.insert(place, call)
        self._contents.changed(entry)
        proto = self._contents.proto
        proto.computations.sort(key=lambda c: c.id == proto.entry_computation_id)

    def _call(self, i: pb.HloInstructionProto, number: int) -> pb.HloInstructionProto:
        callee = self._callees.get(number)
        if callee is None:
            callee, communicates = self._add(self._applied[number][1].proto)
            if not communicates:
                self._callees[number] = callee
        result = callee.program_shape.result
        call = instruction("call", i.id, result, i.operand_ids[:], of=i)
        call.called_computation_ids.append(callee.id)
        return call

    def _add(self, module: pb.HloModuleProto) -> tuple[pb.HloComputationProto, bool]:
        """Add the computations of a module under new ids.

        Returns:
            Its entry, and whether devices communicate in it: then each call needs one of its own,
            for its channels and because what they exchange may be equal in one call only.
        """
        shift, last, communicates = next(self._contents.ids), 0, False
        for c in module.computations:
            made = self._contents.proto.computations.add()
            made.CopyFrom(c)
            made.id, made.root_id = c.id + shift, c.root_id + shift
            made.name = renamed(c.name, made.id)
            last = max(last, made.id)
            for i in made.instructions:  # See NOTE [slices of fields] and NOTE [absent fields].
                opcode, k = i.opcode, i.id + shift
                i.id, i.name = k, f"{opcode}.{k}"
                if k > last:
                    last = k
                communicates |= opcode in opcodes.COLLECTIVES
                if opcode not in opcodes.LEAVES:
                    i.operand_ids[:] = [j + shift for j in i.operand_ids[:]]
                if ids := i.control_predecessor_ids[:]:
                    i.control_predecessor_ids[:] = [j + shift for j in ids]
                if opcode in opcodes.CALLING and (ids := i.called_computation_ids[:]):
                    i.called_computation_ids[:] = [j + shift for j in ids]
        self._contents.ids = count(last + 1)
        entry = module.entry_computation_id + shift
        computations = self._contents.proto.computations
        return next(c for c in computations if c.id == entry), communicates
