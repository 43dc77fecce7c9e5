"""Changes to the protobuf of a computation, in place, and copies of one.

NOTE [slices of fields]: where every instruction of a module is read, its lists of ids are read as
``i.operand_ids[:]``: protobuf takes twice as long to iterate over the field itself.

NOTE [absent fields]: protobuf allocates memory to read a field that a message lacks. Once per
10,000 frees of such memory it returns all unused memory to the system, and needs 10 ms to get it
back. So a loop over every instruction of a module reads a rare field only for the opcodes that have
it.

NOTE [copies]: protobuf's ``CopyFrom`` copies a message in memory. Its ``extend``, ``append``,
``MergeFrom`` and constructors write it to bytes and read these, which takes twice as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

import torch

from xfunc.graph import opcodes
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.literal import scalar_literal
from xfunc.hlo.shape import Shape


def entry_of(proto: pb.HloModuleProto) -> pb.HloComputationProto:
    """The computation that running a module runs."""
    return next(c for c in proto.computations if c.id == proto.entry_computation_id)


def fresh_ids(proto: pb.HloModuleProto) -> Iterator[int]:
    """Ids that are unused in a module; it is read when the first one is asked for."""
    used = 0
    for c in proto.computations:
        used = max(used, c.id, *[i.id for i in c.instructions])
    yield from count(1 + used)


def instruction(
    opcode: str,
    id: int,
    shape: pb.ShapeProto,
    operands: Iterable[int] = (),
    of: pb.HloInstructionProto | None = None,
) -> pb.HloInstructionProto:
    """A new instruction; `of`, which it is a part of, counts as its source."""
    result = pb.HloInstructionProto(opcode=opcode, id=id, operand_ids=operands, shape=shape)
    result.name = f"{opcode}.{id}"
    if of is not None:
        result.metadata.CopyFrom(of.metadata)
    return result


def constant(
    value: float,
    id: int,
    dtype: torch.dtype,
    of: pb.HloInstructionProto | None = None,
) -> pb.HloInstructionProto:
    """A new scalar; see `instruction`."""
    result = instruction("constant", id, Shape(dtype).proto, of=of)
    result.literal.CopyFrom(scalar_literal(value, dtype))
    return result


def add_copies(field: Any, messages: Iterable[Any]) -> None:
    """Append copies of messages to a repeated field of them; see NOTE [copies]."""
    for m in messages:
        field.add().CopyFrom(m)


def with_id(i: pb.HloInstructionProto, id: int) -> pb.HloInstructionProto:
    """A copy of an instruction with another id."""
    result = pb.HloInstructionProto()
    result.CopyFrom(i)
    result.id, result.name = id, renamed(i.name, id)
    return result


def bypass(c: pb.HloComputationProto, stands_for: Mapping[int, int]) -> None:
    """Remove instructions, redirecting the users of each to another one.

    Args:
        c: the computation.
        stands_for: by the id of an instruction to be removed, the id of the other, which may be
            removed too.
    """
    if not stands_for:
        return

    for i in c.instructions:
        for ids in (i.operand_ids, i.control_predecessor_ids):
            if not stands_for.keys().isdisjoint(ids[:]):
                ids[:] = [origin(k, stands_for) for k in ids]
    c.root_id = origin(c.root_id, stands_for)
    remove(c, stands_for)


def unused(uses: dict[int, list[int]], root: int, candidates: Collection[int]) -> set[int]:
    """The candidates that are neither the root nor used by an instruction that stays.

    Args:
        uses: by the id of each instruction, in order, the ids that it mentions.
        root: the id of the root.
        candidates: the ids of the instructions.
    """
    times = Counter(chain((root,), *uses.values()))
    result: set[int] = set()
    for k in [k for k in reversed(uses) if k in candidates]:  # users before their operands
        if not times[k]:
            result.add(k)
            times.subtract(uses[k])
    return result


def remove(c: pb.HloComputationProto, which: Collection[int]) -> None:
    """Remove instructions from a computation, by their ids."""
    if not which:
        return
    gone = [i.id in which for i in c.instructions]
    each = iter(gone)
    c.instructions.sort(key=lambda _: next(each))  # They go to the end.
    del c.instructions[gone.count(False) :]


def remove_computations(proto: pb.HloModuleProto, which: Collection[int]) -> None:
    """Remove computations from a module, by their ids."""
    for k in reversed(range(len(proto.computations) if which else 0)):
        if proto.computations[k].id in which:
            del proto.computations[k]


def called_from(proto: pb.HloModuleProto, start: int) -> list[int]:
    """The ids of the computations that one runs, itself included, callees before their callers."""
    by_id = {c.id: c for c in proto.computations}
    found: dict[int, None] = {}

    def visit(k: int) -> None:
        if k not in found:
            for i in by_id[k].instructions:
                for called in i.called_computation_ids:
                    visit(called)
            found[k] = None

    visit(start)
    return list(found)


def origin(k: int, stands_for: Mapping[int, int]) -> int:
    """The id that finally stands for an id."""
    while k in stands_for:
        k = stands_for[k]
    return k


def fill(c: pb.HloComputationProto, instructions: Iterable[pb.HloInstructionProto]) -> None:
    """Replace the instructions of a computation by these, which may be its own."""
    wanted, own = list(instructions), list(c.instructions)
    kept = {id(i) for i in wanted}
    new = kept.difference(map(id, own))
    for k in reversed(range(len(own))):
        if id(own[k]) not in kept:
            del c.instructions[k]
    add_copies(c.instructions, [i for i in wanted if id(i) in new])  # Only these are copied.
    place = {i.id: k for k, i in enumerate(wanted)}
    c.instructions.sort(key=lambda i: place[i.id])


def computation(
    name: str,
    enters: Sequence[pb.HloInstructionProto],
    inside: Sequence[pb.HloInstructionProto],
    results: Sequence[int],
    ids: Iterator[int],
) -> pb.HloComputationProto:
    """A function with copies of instructions; its result is a tuple unless there is only one.

    Args:
        name: gets the function's id as its end.
        enters: instructions for which it has parameters, with their ids.
        inside: its other instructions.
        results: ids of those that it returns.
        ids: fresh ones.
    """
    c = pb.HloComputationProto(id=next(ids))
    c.name = f"{name}.{c.id}"
    for k, i in enumerate(enters):
        parameter = instruction("parameter", i.id, i.shape, of=i)
        parameter.parameter_number = k
        c.instructions.append(parameter)
        c.program_shape.parameters.append(i.shape)
        c.program_shape.parameter_names.append(parameter.name)
    add_copies(c.instructions, inside)
    shapes = {i.id: i.shape for i in c.instructions}
    c.root_id, shape = results[0], shapes[results[0]]
    if len(results) > 1:
        shape = pb.ShapeProto(element_type=pb.TUPLE, tuple_shapes=[shapes[k] for k in results])
        c.root_id = next(ids)
        c.instructions.append(instruction("tuple", c.root_id, shape, results))
    c.program_shape.result.CopyFrom(shape)
    return c


def renumber(proto: pb.HloModuleProto) -> None:
    """Give the computations and instructions of a module new ids, from 1 on.

    XLA of 2026 writes ids of 64 bits, those of the computations in the upper half. Other releases
    read 32 bits of them.
    """
    numbers = count(1)
    computations = {c.id: next(numbers) for c in proto.computations}
    for c in proto.computations:
        ids = {i.id: next(numbers) for i in c.instructions}
        c.id, c.root_id = computations[c.id], ids[c.root_id]
        c.name = renamed(c.name, c.id)
        for i in c.instructions:
            i.id = ids[i.id]
            i.name = renamed(i.name, i.id)
            i.operand_ids[:] = [ids[k] for k in i.operand_ids]
            i.control_predecessor_ids[:] = [ids[k] for k in i.control_predecessor_ids]
            i.called_computation_ids[:] = [computations[k] for k in i.called_computation_ids]
    proto.entry_computation_id = computations[proto.entry_computation_id]
    proto.entry_computation_name = entry_of(proto).name


def renumber_parameters(proto: pb.HloModuleProto, numbers: Sequence[int]) -> None:
    """Make parameter ``numbers[k]`` of a module's entry parameter k."""
    entry = entry_of(proto)
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


def copied(
    computation: pb.HloComputationProto, ids: dict[int, int], new_id: Callable[[], int]
) -> pb.HloComputationProto:
    """A copy of a computation with new ids.

    `ids` maps old ids to new ones, and is extended by those of this copy. Computations that are not
    in it are called as before.
    """
    copy = pb.HloComputationProto()
    copy.CopyFrom(computation)
    for i in copy.instructions:
        new = ids[i.id] = new_id()
        i.id = new
        i.name = renamed(i.name, new)
        # See NOTE [slices of fields].
        if operands := i.operand_ids[:]:
            i.operand_ids[:] = [ids[k] for k in operands]
    for i in copy.instructions:
        if i.opcode in opcodes.CALLING:  # See NOTE [absent fields].
            i.called_computation_ids[:] = [ids.get(k, k) for k in i.called_computation_ids]
    for i in copy.instructions:
        if i.control_predecessor_ids:
            i.control_predecessor_ids[:] = [ids[k] for k in i.control_predecessor_ids]
    new = ids[computation.id] = new_id()
    copy.id = new
    copy.name = renamed(computation.name, new)
    copy.root_id = ids[computation.root_id]
    return copy


def renamed(name: str, id: int) -> str:
    """The name that an instruction or a computation gets with a new id."""
    stem, _, suffix = name.rpartition(".")
    return f"{stem if stem and suffix.isdigit() else name}.{id}"
