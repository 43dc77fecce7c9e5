"""Shard groups of a whole module: members of one group are divided alike (`annotations.tie`).

A group is two instructions of one computation that state the same number. Modules are put together
of parts that know nothing of each other, and XLA copies a computation to wherever it is called; so
the numbers are settled at the end. If two groups had one number, XLA would tie unrelated values; if
these differ in dimensions, it would end the process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import count

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.annotations import is_automatic, is_tie
from xfunc.hlo.builder import copied

# What reads a tied value out of what a loop carries: not needed without the tie.
_READS = frozenset("dynamic-slice reshape get-tuple-element".split())


def settle_groups(proto: pb.HloModuleProto, automatic: bool = True) -> None:
    """Give each group of a whole program a number of its own.

    Where nothing is divided, groups mean nothing, and are removed.

    Args:
        proto: of the module; it is changed.
        automatic: whether to keep groups that xfunc made by itself.
    """
    if not _computations_with_ties(proto):
        return
    if not _divides(proto):
        strip_groups(proto)
        return
    if not automatic:
        _remove(proto, is_automatic)
    holding = _computations_with_ties(proto)
    if holding:
        _separate(proto, holding)
        _number(proto)


def strip_groups(proto: pb.HloModuleProto) -> None:
    """Remove all groups."""
    _remove(proto, lambda i: True)


def _ties(computation: pb.HloComputationProto) -> Iterator[pb.HloInstructionProto]:
    return (i for i in computation.instructions if i.opcode == "custom-call" and is_tie(i))


def _computations_with_ties(proto: pb.HloModuleProto) -> set[int]:
    """Ids of the computations that have ties, or call one that has."""
    found: set[int] = set()
    for c in proto.computations:  # callees come first
        if any(_ties(c)) or (
            found and any(k in found for i in c.instructions for k in i.called_computation_ids)
        ):
            found.add(c.id)
    return found


def _divides(proto: pb.HloModuleProto) -> bool:
    """Whether anything states how a value is divided."""
    return any(
        i.HasField("sharding") and _is_divided(i.sharding)
        for c in proto.computations
        for i in c.instructions
    )


def _is_divided(sharding: pb.OpSharding) -> bool:
    if sharding.type == pb.OpSharding.TUPLE:
        return any(map(_is_divided, sharding.tuple_shardings))
    return not sharding.is_shard_group and sharding.type != pb.OpSharding.REPLICATED


def _remove(proto: pb.HloModuleProto, which: Callable[[pb.HloInstructionProto], bool]) -> None:
    """Put the operand in the place of some ties, and remove what only they used."""
    for c in proto.computations:
        stands_for: dict[int, int] = {}
        for i in c.instructions:
            if i.operand_ids and stands_for:
                i.operand_ids[:] = [stands_for.get(k, k) for k in i.operand_ids]
            if i.opcode == "custom-call" and is_tie(i) and which(i):
                stands_for[i.id] = i.operand_ids[0]
        if stands_for:
            c.root_id = stands_for.get(c.root_id, c.root_id)
            _drop(c, stands_for)


def _drop(c: pb.HloComputationProto, ties: Collection[int]) -> None:
    used = {c.root_id, *(k for i in c.instructions for k in i.control_predecessor_ids)}
    kept: list[pb.HloInstructionProto] = []
    for i in reversed(c.instructions):
        if i.id in ties or (i.id not in used and i.opcode in _READS):
            continue
        used.update(i.operand_ids)
        kept.append(i)
    del c.instructions[:]
    c.instructions.extend(reversed(kept))


def _separate(proto: pb.HloModuleProto, holding: set[int]) -> None:
    """Let each computation that has ties be called in one place, by copying it."""
    by_id = {c.id: c for c in proto.computations}
    ids = count(
        1 + max(k for c in proto.computations for k in (c.id, *(i.id for i in c.instructions)))
    )
    called: set[int] = set()
    order: list[pb.HloComputationProto] = []

    def visit(c: pb.HloComputationProto) -> None:
        for i in c.instructions:
            for k, callee in enumerate(i.called_computation_ids):
                if callee not in holding:
                    continue
                target = by_id[callee]
                if callee in called:
                    target = copied(target, {}, lambda: next(ids))
                    by_id[target.id] = target
                    holding.add(target.id)
                    i.called_computation_ids[k] = target.id
                called.add(target.id)
                visit(target)
        order.append(c)

    visit(by_id[proto.entry_computation_id])
    if len(by_id) > len(proto.computations):
        rest = [c for c in proto.computations if c.id not in holding]
        del proto.computations[:]
        proto.computations.extend([*rest, *order])


def _number(proto: pb.HloModuleProto) -> None:
    numbers = count(1)
    for c in proto.computations:
        known: dict[int, int] = {}
        for i in _ties(c):
            old = i.sharding.shard_group_id
            if old not in known:
                known[old] = next(numbers)
            i.sharding.shard_group_id = known[old]
            i.ClearField("frontend_attributes")
