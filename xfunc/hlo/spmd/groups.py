"""Shard groups of a whole module: members of one group are sharded alike (`annotations.tie`).

A group is two instructions of one computation that carry the same number. Modules are assembled
from independent parts, and XLA copies a computation to wherever it is called; so the numbers are
assigned at the end. If two groups had the same number, XLA would tie unrelated values; if these
differed in dimensions, it would abort the process.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import bypass, remove_computations
from xfunc.hlo.instances import separate, with_callers
from xfunc.hlo.spmd.annotations import is_automatic, is_pair, is_tie


def settle_groups(contents: Contents, automatic: bool = True) -> None:
    """Give each group of a whole program a unique number.

    If nothing is sharded, groups have no effect and are removed.

    Args:
        contents: of the module; it is changed.
        automatic: whether to keep groups that xfunc made automatically.
    """
    proto = contents.proto
    if not any(map(is_pair, proto.computations)):
        return
    if not _divides(proto):
        _remove(contents, is_tie)
    elif not automatic:
        _remove(contents, is_automatic)
    separate(contents, with_callers(contents, [c.id for c in proto.computations if is_pair(c)]))
    numbers = count(1)
    for c in filter(is_pair, proto.computations):
        number = next(numbers)
        for i in filter(is_tie, c.instructions):
            i.sharding.shard_group_id = number
            i.ClearField("frontend_attributes")


def _divides(proto: pb.HloModuleProto) -> bool:
    """Whether any instruction specifies a sharding."""
    return any(
        i.HasField("sharding") and _is_divided(i.sharding)
        for c in proto.computations
        for i in c.instructions
    )


def _is_divided(sharding: pb.OpSharding) -> bool:
    if sharding.type == pb.OpSharding.TUPLE:
        return any(map(_is_divided, sharding.tuple_shardings))
    return not sharding.is_shard_group and sharding.type != pb.OpSharding.REPLICATED


def _remove(contents: Contents, which: Callable[[pb.HloInstructionProto], bool]) -> None:
    """Replace each tie that fits `which` with its operand, in place."""
    proto = contents.proto
    gone = {c.id for c in proto.computations if is_pair(c) and any(map(which, c.instructions))}
    for c in proto.computations:
        if c.id in gone:
            bypass(c, {i.id: i.operand_ids[0] for i in c.instructions if is_tie(i)})
            contents.changed(c)
            continue
        calls = {
            i.id: [*i.operand_ids]
            for i in contents.of(c, ("call",))
            if i.called_computation_ids[0] in gone
        }
        if calls:
            _skip_calls(c, calls)
            contents.changed(c)
    used = set(chain.from_iterable(map(contents.called, proto.computations)))
    remove_computations(proto, gone - used - {proto.entry_computation_id})


def _skip_calls(c: pb.HloComputationProto, calls: dict[int, list[int]]) -> None:
    """Replace some values by the results of calls on them, instead of their elements."""
    whole = {c.root_id}  # values that are used whole, not element by element
    stands_for: dict[int, int] = {}
    for i in c.instructions:
        if i.opcode == "get-tuple-element" and i.operand_ids[0] in calls:
            stands_for[i.id] = calls[i.operand_ids[0]][i.tuple_index]
        else:
            whole.update(i.operand_ids)
    stands_for.update({k: operands[0] for k, operands in calls.items() if k not in whole})
    bypass(c, stands_for)
