"""`inline_calls`: a module whose entry calls no functions.

A computation that is called becomes part of its caller, once for each call. The bodies of loops and
branches stay computations, and calls in them become part of them; the computations applied by
reductions, sorts and the like are unchanged.

Calls that tie two values (`annotations.tie`) stay: see the note there. So do those of a manual
region (`shard_map`): one device's shard inside it is not a value outside. So do composites, which a
target may replace as a whole, and calls that XLA is told not to inline (`passes.barriers`).

Instructions keep all their attributes. Only those of a callee's parameter (its sharding) are
dropped with the parameter, as they are when XLA inlines the call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import opcodes
from xfunc.hlo.composite import operation_of
from xfunc.hlo.edit import add_copies, fresh_ids, renamed
from xfunc.hlo.module import Module
from xfunc.hlo.spmd.annotations import is_manual_body, is_pair, is_region


def inline_calls(module: Module) -> Module:
    """The module without calls in its entry, and in the loops and branches that it runs.

    A computation's own instructions keep their ids and order; those from a call get new ids. Tuples
    that are only made to be taken apart again are removed.
    """
    computations = {c.id: c for c in module.proto.computations}
    ids = fresh_ids(module.proto)
    flat: dict[int, pb.HloComputationProto] = {}
    applied: set[int] = set()  # by reductions and the like
    todo = [module.proto.entry_computation_id]
    while todo:
        key = todo.pop()
        if key in flat:
            continue
        flat[key] = _Caller(computations, ids).flat(computations[key])
        for i in flat[key].instructions:
            if i.called_computation_ids:
                (todo.extend if i.opcode in opcodes.RUNS else applied.update)(
                    i.called_computation_ids
                )
    for c in reversed(module.proto.computations):  # callers before callees
        if c.id in applied:
            applied.update(k for i in c.instructions for k in i.called_computation_ids)
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    del proto.computations[:]
    kept = (c for c in module.proto.computations if c.id in flat or c.id in applied)
    add_copies(proto.computations, (flat.get(c.id, c) for c in kept))
    return Module(proto)


def _stays(call: pb.HloInstructionProto, callee: pb.HloComputationProto) -> bool:
    """Whether a call of a computation stays one."""
    if call.frontend_attributes.map.get("inlineable") == "false":
        return True
    stays = is_pair(callee) or is_region(callee) or is_manual_body(callee)
    return stays or operation_of(callee) is not None


class _Caller:
    """A computation that inlines its calls."""

    def __init__(self, computations: dict[int, pb.HloComputationProto], ids: Iterator[int]) -> None:
        self._computations, self._ids = computations, ids
        self._made: list[pb.HloInstructionProto] = []
        self._tuples: dict[int, Sequence[int]] = {}  # their elements
        self._taken_apart: set[int] = set()

    def flat(self, c: pb.HloComputationProto) -> pb.HloComputationProto:
        root = self._add(c, None, ())
        proto = pb.HloComputationProto()
        proto.CopyFrom(c)
        del proto.instructions[:]
        proto.root_id = root
        add_copies(proto.instructions, self._used(root))
        return proto

    def _add(
        self, c: pb.HloComputationProto, arguments: dict[int, int] | None, after: Collection[int]
    ) -> int:
        """Add the instructions of a computation; returns the id of its result.

        Args:
            c: the computation itself, or one that it calls.
            arguments: of a call, by the id of the parameter; None for the computation itself.
            after: the instructions that must have run before.
        """
        known = dict(arguments or {})
        insides: dict[int, list[int]] = {}  # the instructions that replace a call
        for i in c.instructions:
            key = i.id
            if key in known:
                continue  # an argument
            opcode = i.opcode
            operands = [known[k] for k in i.operand_ids[:]]  # See NOTE [slices of fields].
            waits = [*after]
            for k in i.control_predecessor_ids[:]:
                waits += insides.get(k) or [known[k]]
            if opcode == "call" and not _stays(i, self._computations[i.called_computation_ids[0]]):
                start = len(self._made)
                known[key] = self._call(i, operands, waits)
                insides[key] = [m.id for m in self._made[start:]]
                continue
            if opcode == "get-tuple-element" and operands[0] in self._tuples and not waits:
                self._taken_apart.add(operands[0])
                known[key] = self._tuples[operands[0]][i.tuple_index]
                continue
            new = pb.HloInstructionProto()
            new.CopyFrom(i)
            if arguments is not None:
                new.id = next(self._ids)
                new.name = renamed(i.name, new.id)
            new.operand_ids[:] = operands
            new.control_predecessor_ids[:] = waits
            if opcode == "tuple":
                self._tuples[new.id] = operands
            known[key] = new.id
            self._made.append(new)
        return known[c.root_id]

    def _call(
        self, call: pb.HloInstructionProto, operands: Sequence[int], waits: Collection[int]
    ) -> int:
        (callee,) = (self._computations[k] for k in call.called_computation_ids)
        parameters = (i for i in callee.instructions if i.opcode == "parameter")
        return self._add(callee, {p.id: operands[p.parameter_number] for p in parameters}, waits)

    def _used(self, root: int) -> list[pb.HloInstructionProto]:
        """The added instructions, without tuples that were only taken apart."""
        used = {root}
        kept: list[pb.HloInstructionProto] = []
        for i in reversed(self._made):
            if i.id in used or i.id not in self._taken_apart:
                used.update(i.operand_ids[:])
                used.update(i.control_predecessor_ids[:])
                kept.append(i)
        return kept[::-1]
