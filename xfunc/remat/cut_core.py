"""The core of a cut problem: the decisions left after all obvious ones.

The forward values of a transformer layer are reduced from hundreds to tens. Each step preserves a
best plan, in bytes as well as in seconds:

- Values that the backward pass can never need are left out.
- Available values, values of no bytes, and values computed in no time from these need no decision.
- A needed value that cannot be recomputed is kept; a needed value that cannot be kept is
  recomputed, so its operands are needed.
- A value that takes no time, and no fewer bytes than its operands together, is never kept: keep the
  operands instead. Its users are taken to use its operands.
- A value with a single user, and no fewer bytes than that user, is never kept: keep the user
  instead. The two become one.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xfunc.remat.cut import CutProblem

# All seconds together are about 2**20 ticks. No cost model is finer than that, and a value that
# takes less than half a tick, such as a sum of two scalars, is not worth a decision: it is free.
_TICKS = 20


@dataclasses.dataclass(frozen=True, eq=False)
class Core:
    """The rest of a problem. Positions count its nodes from zero.

    Attributes:
        ids: of the nodes.
        bytes: of each node; None if it is never kept.
        ticks: the time to recompute each node; None if it never is.
        operands: positions of the operands of each node.
        needed: positions of the nodes that must be there.
        kept: ids of nodes that every plan keeps, or that take no bytes.
        kept_bytes: their bytes.
    """

    ids: tuple[int, ...]
    bytes: tuple[int | None, ...]
    ticks: tuple[int | None, ...]
    operands: tuple[tuple[int, ...], ...]
    needed: tuple[int, ...]
    kept: frozenset[int]
    kept_bytes: int


class NoPlan(Exception):
    """A needed node can be neither kept nor recomputed.

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
    """The core of a problem; no value larger than the budget is kept."""
    wanted = _wanted(problem)
    tick = _tick(problem)
    graph: dict[int, _Node] = {}
    stands_for: dict[int, set[int]] = {}  # by id: the nodes of the graph that provide it
    nowhere: set[int] = set()  # ids of values that can be neither kept nor recomputed
    kept: set[int] = set()
    for n in problem.nodes:
        if n.id not in wanted:
            continue
        size = n.bytes if n.keepable and (budget is None or n.bytes <= budget) else None
        if n.available or size == 0:
            stands_for[n.id] = set()
            if not n.available:
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
    """Remove nodes from the graph, users first; returns the bytes of the nodes that are always
    kept.
    """
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

    Anything is no larger than a value that cannot be kept.
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
        if n.id in wanted and n.recomputable and not n.available:
            wanted.update(n.operands)
    return wanted


def _tick(problem: CutProblem) -> float:
    """The length of a tick in seconds: a power of two, so that simple fractions are exact."""
    total = math.fsum(n.seconds for n in problem.nodes)
    return math.ldexp(1.0, math.frexp(total)[1] - _TICKS)
