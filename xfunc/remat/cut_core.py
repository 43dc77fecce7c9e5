"""The core of a cut problem: the decisions left after all obvious ones.

The forward values of a layer of a transformer come down from some hundreds to some tens. Each step
keeps a best plan, in bytes as well as in seconds:

- What the backward pass has no way to ask for is left out.
- What is at hand, or takes no bytes, or is computed in no time from such values, is always there.
- What is needed and cannot be computed again is kept; what is needed and cannot be kept is computed
  again, so its operands are needed.
- What takes no time, and no fewer bytes than its operands together, is never kept: keep the
  operands instead. Its users are taken to use its operands.
- What one other node uses and nothing else, and takes no fewer bytes than that node, is never kept:
  keep the node instead. The two become one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xfunc.remat.cut import CutProblem

# All seconds together are about 2**20 ticks. No cost model is finer than that, and what takes less
# than half a tick, such as a sum of two scalars, is not worth a decision: it counts as free.
_TICKS = 20


@dataclasses.dataclass(frozen=True, eq=False)
class Core:
    """The rest of a problem. Positions count its nodes from zero.

    Attributes:
        ids: of the nodes.
        bytes: of each; None if it is never kept.
        ticks: to compute each again; None if it never is.
        operands: positions of each one's operands.
        needed: positions of what must be there.
        kept: ids of what is kept in every plan, or for no bytes.
        kept_bytes: what they take.
    """

    ids: tuple[int, ...]
    bytes: tuple[int | None, ...]
    ticks: tuple[int | None, ...]
    operands: tuple[tuple[int, ...], ...]
    needed: tuple[int, ...]
    kept: frozenset[int]
    kept_bytes: int


class NoPlan(Exception):
    """A node that is needed can be neither kept nor computed again.

    Attributes:
        node: its id.
    """

    def __init__(self, node: int):
        super().__init__(f"node {node} is needed; it can be neither kept nor computed again")
        self.node = node


@dataclasses.dataclass
class _Node:
    bytes: int | None
    ticks: int | None
    operands: set[int]
    users: set[int] = dataclasses.field(default_factory=set)


def reduce(problem: CutProblem, budget: int | None) -> Core:
    """The core of a problem; nothing that is larger than the budget is kept."""
    wanted = _wanted(problem)
    tick = _tick(problem)
    graph: dict[int, _Node] = {}
    stands_for: dict[int, set[int]] = {}  # by id: the nodes of the graph that it takes to have it
    nowhere: set[int] = set()  # ids of what can be neither kept nor computed again
    kept: set[int] = set()
    for n in problem.nodes:
        if n.id not in wanted:
            continue
        size = n.bytes if n.keepable and (budget is None or n.bytes <= budget) else None
        if n.at_hand or size == 0:
            stands_for[n.id] = set()
            if not n.at_hand:
                kept.add(n.id)
            continue
        ticks = None
        operands: set[int] = set()
        if n.recomputable and nowhere.isdisjoint(n.operands):
            ticks = round(n.seconds / tick)
            operands.update(*(stands_for[o] for o in n.operands))
        if size is None and ticks is None:
            nowhere.add(n.id)
        elif ticks == 0 and _no_larger([graph[o].bytes for o in operands], size):
            stands_for[n.id] = operands
        else:
            stands_for[n.id] = {n.id}
            graph[n.id] = _Node(size, ticks, operands)
            for o in operands:
                graph[o].users.add(n.id)

    needed: set[int] = set()
    for v in problem.needed:
        if v in nowhere:
            raise NoPlan(v)
        needed |= stands_for[v]
    kept_bytes = _shrink(graph, needed, kept)
    return _numbered(graph, needed, kept, kept_bytes)


def _shrink(graph: dict[int, _Node], needed: set[int], kept: set[int]) -> int:
    """Take nodes out of the graph, users first; returns the bytes of what is kept for certain."""
    kept_bytes = 0
    for v in reversed(list(graph)):
        n = graph[v]
        if v in needed:
            if n.ticks is None:
                assert n.bytes is not None
                kept.add(v)
                kept_bytes += n.bytes
            elif n.bytes is None:
                needed.update(n.operands)
            else:
                continue
        elif len(n.users) == 1:
            (user,) = n.users
            u = graph[user]
            if n.ticks is None or u.ticks is None or not _no_larger([u.bytes], n.bytes):
                continue
            u.ticks += n.ticks
            u.operands |= n.operands
            for o in n.operands:
                graph[o].users.add(user)
        elif n.users:
            continue
        for o in n.operands:
            graph[o].users.discard(v)
        for u in n.users:
            graph[u].operands.discard(v)
        del graph[v]
    needed.intersection_update(graph)
    return kept_bytes


def _numbered(graph: dict[int, _Node], needed: set[int], kept: set[int], kept_bytes: int) -> Core:
    place = {v: k for k, v in enumerate(graph)}
    return Core(
        tuple(graph),
        tuple(n.bytes for n in graph.values()),
        tuple(n.ticks for n in graph.values()),
        tuple(tuple(sorted(place[o] for o in n.operands)) for n in graph.values()),
        tuple(sorted(place[v] for v in needed)),
        frozenset(kept),
        kept_bytes,
    )


def _no_larger(instead: list[int | None], size: int | None) -> bool:
    """Whether keeping all of `instead` is possible and takes no more than `size`.

    Nothing is no larger than what cannot be kept anyway.
    """
    if size is None:
        return True
    total = 0
    for b in instead:
        if b is None:
            return False
        total += b
    return total <= size


def _wanted(problem: CutProblem) -> set[int]:
    """Ids of the nodes that the backward pass may need."""
    wanted = set(problem.needed)
    for n in reversed(problem.nodes):
        if n.id in wanted and n.recomputable and not n.at_hand:
            wanted.update(n.operands)
    return wanted


def _tick(problem: CutProblem) -> float:
    """The length of a tick in seconds: a power of two, so that simple fractions are exact."""
    total = math.fsum(n.seconds for n in problem.nodes)
    return math.ldexp(1.0, math.frexp(total)[1] - _TICKS)
