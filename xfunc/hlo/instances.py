"""Computations that must be called in only one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import add_copies, copied


def holding(contents: Contents, wanted: Callable[[pb.HloInstructionProto], bool]) -> set[int]:
    """Ids of the computations that contain a wanted instruction, directly or through calls."""
    computations = contents.proto.computations
    return with_callers(contents, [c.id for c in computations if any(map(wanted, c.instructions))])


def with_callers(contents: Contents, computations: Iterable[int]) -> set[int]:
    """Ids of computations, and of their direct and indirect callers."""
    result = set(computations)
    for c in contents.proto.computations if result else ():  # callees come first
        if not result.isdisjoint(contents.called(c)):
            result.add(c.id)
    return result


def separate(contents: Contents, which: set[int]) -> None:
    """Copy computations so that each is called in only one place; in place.

    Args:
        contents: of the module.
        which: ids of the computations, including all their callers; the ids of the copies are
            added to it.
    """
    proto = contents.proto
    by_id = {c.id: c for c in proto.computations}
    called: set[int] = set()
    order: list[pb.HloComputationProto] = []

    def visit(c: pb.HloComputationProto) -> None:
        for i in contents.callers(c):
            for k, callee in enumerate(i.called_computation_ids[:]):
                if callee not in which:
                    continue
                target = by_id[callee]
                if callee in called:
                    target = copied(target, {}, lambda: next(contents.ids))
                    by_id[target.id] = target
                    which.add(target.id)
                    i.called_computation_ids[k] = target.id
                called.add(target.id)
                visit(target)
        order.append(c)

    visit(by_id[proto.entry_computation_id])
    if len(by_id) > len(proto.computations):
        rest = [c for c in proto.computations if c.id not in which]
        del proto.computations[:]
        add_copies(proto.computations, (*rest, *order))
