"""Orders of the steps of a computation that need little memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence

from xfunc.hlo.estimate.buffers import Buffer, Step


def memory_order(
    steps: Sequence[Step],
    kept: Collection[Buffer],
    tie: Callable[[int], int] = lambda k: 0,
) -> list[Step]:
    """The steps in a greedy order: the next is the one that frees the most, net.

    Args:
        steps: in an order in which every buffer is written before it is read.
        kept: the buffers that are never freed.
        tie: by position, decides between steps that free the same; the least is next.

    Source: ``ListScheduler`` in XLA's ``hlo_memory_scheduler.cc``.
    """
    writer = {b: k for k, s in enumerate(steps) for b in s.writes}
    readers: dict[Buffer, set[int]] = {}
    waits = [0] * len(steps)
    unblocks: list[list[int]] = [[] for _ in steps]
    for k, s in enumerate(steps):
        for b in s.reads:
            readers.setdefault(b, set()).add(k)
        for w in {writer[b] for b in s.reads if b in writer}:
            waits[k] += 1
            unblocks[w].append(k)

    def gain(k: int) -> int:
        s = steps[k]
        last = {b for b in s.reads if len(readers[b]) == 1 and b in writer and b not in kept}
        new = sum(b.bytes for b, places in s.writes.items() if last.isdisjoint(places))
        in_place = sum(b.bytes for b in s.writes) - new
        return sum(b.bytes for b in last) - in_place - new

    ready = [(-gain(k), tie(k), k) for k, n in enumerate(waits) if n == 0]
    heapq.heapify(ready)
    done = [False] * len(steps)
    result: list[Step] = []
    while ready:
        *_, k = heapq.heappop(ready)
        if done[k]:
            continue  # It was queued again once it could free more.
        done[k] = True
        result.append(steps[k])
        for b in steps[k].reads:
            readers[b].discard(k)
            if len(readers[b]) == 1:
                (other,) = readers[b]
                if waits[other] == 0:
                    heapq.heappush(ready, (-gain(other), tie(other), other))
        for other in unblocks[k]:
            waits[other] -= 1
            if waits[other] == 0:
                heapq.heappush(ready, (-gain(other), tie(other), other))
    return result


def just_in_time(order: Sequence[Step]) -> list[Step]:
    """The same order, with steps delayed until used where that keeps less alive than they write."""
    writer = {b: k for k, s in enumerate(order) for b in s.writes}
    readers: dict[Buffer, int] = {}
    for s in order:
        for b in s.reads:
            readers[b] = readers.get(b, 0) + 1
    waits = [False] * len(order)
    for k, s in enumerate(order):
        holds = 0  # bytes that live longer if this step waits
        for b in s.reads:
            if b in writer and not (waits[writer[b]] and readers[b] == 1):
                holds += b.bytes
        waits[k] = holds < sum(b.bytes for b in s.writes if b in readers)
    found: dict[int, Step] = {}

    def add(k: int) -> None:
        todo = [k]
        while todo:
            k = todo[-1]
            before = [writer[b] for b in order[k].reads if b in writer]
            missing = [w for w in before if w not in found]
            if missing:
                todo += missing
            else:
                found.setdefault(todo.pop(), order[k])

    for k in range(len(order)):
        if not waits[k]:
            add(k)
    for k in range(len(order)):
        add(k)
    return list(found.values())
