"""Passes from modules to modules, in linear time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import opcodes
from xfunc.hlo.edit import add_copies, fresh_ids, instruction
from xfunc.hlo.errors import InvalidHloError
from xfunc.hlo.module import Computation, Instruction, Module
from xfunc.hlo.shape import Shape
from xfunc.hlo.verify import verify


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


def extract(
    module: Module,
    outputs: Sequence[int],
    parameters: Sequence[int],
    *,
    name: str,
    barrier: bool = False,
) -> Module:
    """The part of a module's entry that computes some values from others.

    Args:
        module: where to take it from.
        outputs: ids of entry instructions; the new entry returns the tuple of them. One may occur
            more than once.
        parameters: ids of entry instructions that become the new parameters, in this order. Each
            keeps its id and shape, whatever it was before. One that is not needed still becomes a
            parameter.
        name: of the new module.
        barrier: pass all parameters through one optimisation barrier, so that XLA does not merge
            the computation with anything outside.

    Raises:
        InvalidHloError: an id is unknown or a parameter listed twice, or the outputs need a
            parameter of the old entry that is not listed.
    """
    entry = module.entry
    roots = [_find(entry, k, "an output") for k in outputs]
    given = {k: _find(entry, k, "a parameter") for k in parameters}
    if len(given) != len(parameters):
        twice = next(k for k in given if list(parameters).count(k) > 1)
        raise InvalidHloError(f"extract: {given[twice]} is listed twice as a parameter")
    needed = reachable(roots, stop=given.keys())
    kept = [i for i in entry.instructions if i.id in needed and i.id not in given]
    for i in kept:
        if i.opcode == "parameter":
            raise InvalidHloError(f"extract: {i} is needed, but not among the new parameters")

    ids = fresh_ids(module.proto)
    made = [_parameter(i, number) for number, i in enumerate(given.values())]
    if barrier and made:
        made += _barrier(made, ids)
    root = instruction("tuple", next(ids), _tuple(r.shape for r in roots), outputs)

    proto = pb.HloModuleProto(
        name=name, entry_computation_id=entry.id, entry_computation_name=f"{name}.{entry.id}"
    )
    called = _called([entry], {entry.id: {i.id for i in kept}})
    others = [c.proto for c in module.computations if c.id in called and c is not entry]
    add_copies(proto.computations, others)
    new = proto.computations.add(id=entry.id, name=proto.entry_computation_name, root_id=root.id)
    found = (_without_lost_control(i.proto, needed) for i in kept)
    add_copies(new.instructions, (*made, *found, root))
    for i in made[: len(given)]:
        new.program_shape.parameters.append(i.shape)
        new.program_shape.parameter_names.append(i.name)
    new.program_shape.result.CopyFrom(root.shape)
    proto.host_program_shape.CopyFrom(new.program_shape)
    part = Module(proto)
    part.signatures = verify(part)
    return part


def _find(entry: Computation, id: int, what: str) -> Instruction:
    try:
        return entry.by_id[id]
    except KeyError:
        raise InvalidHloError(
            f"extract: there is no instruction {id} in computation {entry.name!r} to be {what}"
        ) from None


def reachable(
    roots: Iterable[Instruction], stop: Collection[int] = (), *, and_control: bool = False
) -> set[int]:
    """Ids of the instructions that the roots depend on, not looking past those in `stop`.

    With `and_control`, instructions that only have to run before one of these are included.
    """
    found: set[int] = set()
    todo = list(roots)
    while todo:
        i = todo.pop()
        if i.id in found:
            continue
        found.add(i.id)
        if i.id not in stop:
            todo += i.operands
            if and_control:
                todo += [i.computation.by_id[k] for k in i.proto.control_predecessor_ids]
    return found


def _called(roots: Iterable[Computation], live: dict[int, set[int]]) -> set[int]:
    """Ids of the computations reached from the roots through the instructions in `live`."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        c = todo.pop()
        if c.id in found:
            continue
        found.add(c.id)
        counts = live.get(c.id)
        for i in c.instructions:
            if counts is None or i.id in counts:
                todo += i.called_computations
    return found


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


def _without_lost_control(proto: pb.HloInstructionProto, kept: set[int]) -> pb.HloInstructionProto:
    """The instruction without control dependencies on removed ones."""
    waits = proto.control_predecessor_ids[:]
    if kept.issuperset(waits):
        return proto
    copy = pb.HloInstructionProto()
    copy.CopyFrom(proto)
    copy.control_predecessor_ids[:] = [k for k in waits if k in kept]
    return copy


def _parameter(of: Instruction, number: int) -> pb.HloInstructionProto:
    """Parameter `number` in place of an instruction."""
    if of.opcode == "parameter":
        proto = pb.HloInstructionProto()
        proto.CopyFrom(of.proto)
        proto.ClearField("control_predecessor_ids")
    else:
        proto = instruction("parameter", of.id, of.shape.proto)
        # Its sharding holds for a parameter too; but a tie to the sharding of another value is
        # between the two instructions that carry it.
        if of.proto.HasField("sharding") and not of.proto.sharding.is_shard_group:
            proto.sharding.CopyFrom(of.proto.sharding)
    proto.parameter_number = number
    return proto


def _barrier(
    parameters: Sequence[pb.HloInstructionProto], ids: Iterator[int]
) -> list[pb.HloInstructionProto]:
    """A barrier after the parameters: they get new ids, and its results take the old ones."""
    old = [p.id for p in parameters]
    for p in parameters:
        p.id = next(ids)
        p.name = f"parameter.{p.id}"
    shape = _tuple(Shape.from_proto(p.shape) for p in parameters)
    packed = instruction("tuple", next(ids), shape, [p.id for p in parameters])
    behind = instruction("opt-barrier", next(ids), shape, [packed.id])
    elements = [
        instruction("get-tuple-element", id, p.shape, [behind.id])
        for id, p in zip(old, parameters, strict=True)
    ]
    for k, element in enumerate(elements):
        element.tuple_index = k
    return [packed, behind, *elements]


def _tuple(shapes: Iterable[Shape]) -> pb.ShapeProto:
    return Shape.of_tuple(shapes).proto
