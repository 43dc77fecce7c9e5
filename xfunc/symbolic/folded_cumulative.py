"""Running operations as single instructions, where programs of several sizes are compared.

NOTE [one running operation for all sizes]: the steps of a running operation differ for each length.
But no element of its result depends on a later one, so where padding is at the end, the steps for
the length of a bucket are right for all shorter ones. So the call of such an operation is folded
into one custom call, and what remains is compared between sizes, fitted and padded. The program of
a bucket then gets the steps back that the function has at the bucket's own sizes.

NOTE [coincidences at a size]: a tracer makes equal constants once, and barriers of arrays of one
shape call the same computation. At some size, two numbers or shapes may be equal by chance. So each
use of a scalar constant gets its own, and so does each call of a barrier. The numbers of shard
groups are ids, which depend on how many instructions there are before.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from xfunc.graph.composite import dimension_of, is_running, running_of
from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import called_from, copied, fill, fresh_ids, remove_computations, with_id
from xfunc.hlo.passes.barriers import is_barrier
from xfunc.hlo.spmd.annotations import is_tie

_Key = tuple[object, ...]  # of an operation on arrays of given shapes


def is_folded(i: pb.HloInstructionProto) -> bool:
    """Whether an instruction stands for a running operation."""
    return i.opcode == "custom-call" and is_running(i.custom_call_target)


def dimension(i: pb.HloInstructionProto) -> int:
    """The dimension of a running operation."""
    return dimension_of(i.custom_call_target)


def folded(module: Module) -> Module:
    """The module with a custom call for each running operation, and with nothing in common use."""
    names = _names(module.proto)
    barriers = {c.id: c for c in module.proto.computations if is_barrier(c)}
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    ids = fresh_ids(proto)
    made: list[pb.HloComputationProto] = []
    for i in _calls(proto, barriers):
        made.append(copied(barriers[i.called_computation_ids[0]], {}, lambda: next(ids)))
        i.called_computation_ids[0] = made[-1].id
    for i in _calls(proto, names):
        i.opcode, i.custom_call_target = "custom-call", names[i.called_computation_ids[0]]
        i.custom_call_api_version = 1  # API_VERSION_ORIGINAL
        del i.called_computation_ids[:]
    proto.computations.extend(made)
    place = {k: n for n, k in enumerate(called_from(proto, proto.entry_computation_id))}
    remove_computations(proto, {c.id for c in proto.computations} - place.keys())
    proto.computations.sort(key=lambda c: place[c.id])
    for c in proto.computations:
        _unshare_constants(c, ids)
        groups: dict[int, int] = {}  # distinct within a computation: see `annotations.tied`
        for i in c.instructions:
            if i.opcode == "custom-call" and is_tie(i):
                number = groups.setdefault(i.sharding.shard_group_id, len(groups) + 1)
                i.sharding.shard_group_id = number
    return Module(proto)


def _unshare_constants(c: pb.HloComputationProto, ids: Iterator[int]) -> None:
    """Put a copy of each scalar constant before each of its uses."""
    scalars = {
        i.id: i
        for i in c.instructions
        if i.opcode == "constant" and not i.shape.dimensions and i.id != c.root_id
    }
    found: list[pb.HloInstructionProto] = []
    for i in c.instructions:
        if i.id in scalars:
            continue
        for k, operand in enumerate(i.operand_ids[:]):
            if operand in scalars:
                found.append(with_id(scalars[operand], next(ids)))
                i.operand_ids[k] = found[-1].id
        found.append(i)
    if scalars:
        fill(c, found)


def unfolded(module: Module, source: Module) -> Module:
    """The module with the steps of each running operation.

    Args:
        module: made of a folded one.
        source: has the same operations on arrays of the same shapes, spelled out.
    """
    calls = [i for c in module.proto.computations for i in c.instructions if is_folded(i)]
    if not calls:
        return module
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    names, ids = _names(source.proto), fresh_ids(proto)
    given = {c.id: c for c in source.proto.computations}
    shapes = {i.id: i.shape for c in source.proto.computations for i in c.instructions}
    spelled = {
        _key(names[i.called_computation_ids[0]], i, shapes): i.called_computation_ids[0]
        for i in _calls(source.proto, names)
    }
    known: dict[int, int] = {}  # ids of copies by ids in `source`
    made: list[pb.HloComputationProto] = []
    shapes = {i.id: i.shape for c in proto.computations for i in c.instructions}
    for i in [i for c in proto.computations for i in c.instructions if is_folded(i)]:
        body = spelled[_key(i.custom_call_target, i, shapes)]
        for k in called_from(source.proto, body):
            if k not in known:
                made.append(copied(given[k], known, lambda: next(ids)))
        i.opcode = "call"
        i.ClearField("custom_call_target")
        i.ClearField("custom_call_api_version")
        i.called_computation_ids.append(known[body])
    others = list(proto.computations)
    del proto.computations[:]
    proto.computations.extend([*made, *others])
    return Module(proto)


def _names(proto: pb.HloModuleProto) -> dict[int, str]:
    """Running operations, by the computations of their steps."""
    found = {c.id: running_of(c.name) for c in proto.computations}
    return {k: name for k, name in found.items() if name is not None}


def _calls(proto: pb.HloModuleProto, callees: Container[int]) -> Iterator[pb.HloInstructionProto]:
    """The calls of some computations."""
    for c in proto.computations:
        for i in c.instructions:
            if i.opcode == "call" and i.called_computation_ids[0] in callees:
                yield i


def _key(name: str, i: pb.HloInstructionProto, shapes: dict[int, pb.ShapeProto]) -> _Key:
    given = (shapes[k] for k in i.operand_ids)
    return name, *((s.element_type, tuple(s.dimensions)) for s in given)
