"""`in_order`: a program whose steps run in a given order.

NOTE [how XLA is told an order]: HLO has control dependencies, but on the CPU the simplifier of
torch_xla 2.9's XLA ends the process if an instruction that it replaces has one, and StableHLO has
none. Calls of functions that are not inlined survive all passes, and run after their operands. So
the program becomes a chain of calls, each with one result of the call before as an operand more.
Nothing is computed twice, except what XLA would fuse into several steps anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.builder import Builder
from xfunc.hlo.computation import Value
from xfunc.hlo.edit import bypass, entry_of
from xfunc.hlo.module import Instruction, Module
from xfunc.hlo.passes.common import dead_code_elimination, extract, reachable


def in_order(module: Module, steps: Sequence[Instruction]) -> Module:
    """The module with its steps in an order.

    Args:
        module: its entry calls no functions.
        steps: instructions of the entry, operands first; those between them belong to the steps
            that use them.
    """
    entry = module.entry
    groups = _groups(steps)
    made_by = {i.id: k for k, group in enumerate(groups) for i in group}
    needs = [_needed(group, made_by) for group in groups]
    last = reachable([entry.root], stop=made_by.keys())
    wanted: dict[int, None] = dict.fromkeys(k for k in last if k in made_by)
    for k, need in enumerate(needs):
        wanted |= dict.fromkeys(i for i in need if made_by.get(i, k) != k)
    b = Builder(module.proto.name)
    body = b.computation(entry.name)
    known: dict[int, Value] = {p.id: body.parameter(p.shape) for p in entry.parameters}
    token: int | None = None
    for k, (group, need) in enumerate(zip(groups, needs, strict=True)):
        inputs = [i for i in need if made_by.get(i, k) != k or entry.by_id[i].opcode == "parameter"]
        if token is not None and token not in inputs:
            inputs.append(token)
        results = [i.id for i in group if i.id in wanted] or [group[-1].id]
        part = extract(module, results, inputs, name=f"step_{k}")
        call = body.call(b.embed(part), [known[i] for i in inputs])
        for n, i in enumerate(results):
            known[i] = body.get_tuple_element(call, n)
        token = min(results, key=lambda i: entry.by_id[i].bytes)
    inputs = [i for i in last if i in made_by or entry.by_id[i].opcode == "parameter"]
    operands = [o.id for o in entry.root.operands]
    end = body.call(
        b.embed(extract(module, operands, inputs, name="results")), [known[i] for i in inputs]
    )
    root = body.tuple([body.get_tuple_element(end, n) for n in range(len(operands))])
    found = b.build(body.build(root))
    calls = [i for i in entry_of(found.proto).instructions if i.opcode == "call"]
    for i in calls[:-1]:
        i.frontend_attributes.map["inlineable"] = "false"
    return found


def without_barriers(module: Module) -> Module:
    """The module without the barriers of its entry.

    A step would need all that passes through one with what it reads.
    """
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    instead: dict[int, int] = {}
    for i in module.entry.instructions:
        if i.opcode == "get-tuple-element" and i.operands[0].opcode == "opt-barrier":
            packed = i.operands[0].operands[0]
            if packed.opcode == "tuple":
                instead[i.id] = packed.operands[i.proto.tuple_index].id
    bypass(entry_of(proto), instead)
    return dead_code_elimination(Module(proto))


def _needed(group: Sequence[Instruction], made_by: dict[int, int]) -> set[int]:
    """What a group computes, and the parameters and steps that it reads."""
    own, found = made_by[group[0].id], set[int]()
    todo = list(group)
    while todo:
        i = todo.pop()
        if i.id not in found:
            found.add(i.id)
            todo += i.operands if made_by.get(i.id, own) == own else ()
    return found


def _groups(steps: Sequence[Instruction]) -> list[list[Instruction]]:
    """The steps, with each that needs the one before in one group with it."""
    groups: list[list[Instruction]] = []
    ids = {s.id: k for k, s in enumerate(steps)}
    for s in steps:
        if groups and groups[-1][-1].id in _needed([s], ids):
            groups[-1].append(s)
        else:
            groups.append([s])
    return groups
