"""Passes from modules to modules, in linear time."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from xfunc.graph import opcodes
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import add_copies
from xfunc.hlo.module import Computation, Instruction, Module


def dead_code_elimination(module: Module) -> Module:
    """Remove dead code.

    Instructions that no root is computed from are removed, except parameters and those with side
    effects (and calls of computations with such); then computations that nothing calls.
    """
    known: dict[int, bool] = {}
    live = {c.id: _live(c, known) for c in module.computations}
    called = _called([module.entry], live)
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    del proto.computations[:]
    for c in module.computations:
        if c.id in called:
            kept = [i.proto for i in c.instructions if i.id in live[c.id]]
            _copy(c, kept, proto.computations.add())
    return Module(proto)


def reachable(
    roots: Iterable[Instruction], stop: Collection[int] = (), *, and_control: bool = False
) -> set[int]:
    """Ids of the instructions that the roots depend on, not looking past those in `stop`.

    With `and_control`, instructions that only have to run before one of these are included.
    """
    result: set[int] = set()
    todo = list(roots)
    while todo:
        i = todo.pop()
        if i.id in result:
            continue
        result.add(i.id)
        if i.id not in stop:
            todo += i.operands
            if and_control:
                todo += [i.computation.by_id[k] for k in i.proto.control_predecessor_ids]
    return result


def _called(roots: Iterable[Computation], live: dict[int, set[int]]) -> set[int]:
    """Ids of the computations reached from the roots through the instructions in `live`."""
    result: set[int] = set()
    todo = list(roots)
    while todo:
        c = todo.pop()
        if c.id in result:
            continue
        result.add(c.id)
        counts = live.get(c.id)
        for i in c.instructions:
            if counts is None or i.id in counts:
                todo += i.called_computations
    return result


def _live(c: Computation, known: dict[int, bool]) -> set[int]:
    needed = reachable([c.root], and_control=True)
    others = [i for i in c.instructions if i.id not in needed]
    roots = [i for i in others if i.opcode == "parameter" or _has_effect(i, known)]
    return needed | reachable(roots, stop=needed, and_control=True)


def _has_effect(i: Instruction, known: dict[int, bool]) -> bool:
    """Whether an instruction has effects; `known` holds the answers for computations."""
    if i.opcode in opcodes.TRANSFERS or i.proto.custom_call_has_side_effect:
        return True
    for c in i.called_computations:
        if c.id not in known:
            known[c.id] = any(_has_effect(j, known) for j in c.instructions)
        if known[c.id]:
            return True
    return False


def _copy(
    computation: Computation,
    instructions: Iterable[pb.HloInstructionProto],
    proto: pb.HloComputationProto,
) -> None:
    """Make `proto` the computation with its instructions replaced by these."""
    proto.CopyFrom(computation.proto)
    del proto.instructions[:]
    add_copies(proto.instructions, instructions)
