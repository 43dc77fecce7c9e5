"""Orders of the steps of a computation, found by search."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Collection, Sequence

from xfunc.hlo.estimate.buffers import Buffer, Step


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _State:
    """Some of the steps, in an order.

    Attributes:
        peak: the most memory held so far.
        live: the memory held after them.
        done: the steps, as bits.
        ready: the steps with computed operands, as bits.
        last: the last of them.
        before: the others.
    """

    peak: int
    live: int
    done: int
    ready: int
    last: int
    before: _State | None


def searched_order(
    steps: Sequence[Step], kept: Collection[Buffer], width: int, tries: int
) -> list[int]:
    """The positions of the steps in an order that holds little memory at a time.

    Sets of steps that may run first are extended by one step at a time, those with the least peak
    before others: the first that has all steps has the best order of all. If none has after `tries`
    extensions, a beam search follows: of the sets of each size, the `width` best are kept.

    Args:
        steps: in an order in which every buffer is written before it is read.
        kept: the buffers that are never freed.
        width: how many sets of a size the beam search keeps.
        tries: how many sets are extended before that.
    """
    graph = _Graph(steps, kept)
    count = itertools.count()
    start = graph.start()
    todo = [(0, 0, next(count), start)]
    seen: set[int] = set()
    for _ in range(tries):
        _, left, _, state = heapq.heappop(todo)
        if left == -len(steps):
            return _order(state)
        if state.done in seen:
            continue
        seen.add(state.done)
        for k in _bits(state.ready):
            new = graph.after(state, k)
            if new.done not in seen:
                heapq.heappush(todo, (new.peak, left - 1, next(count), new))
    front = [start]
    for _ in steps:
        best: dict[int, _State] = {}
        for state in front:
            for k in _bits(state.ready):
                new = graph.after(state, k)
                old = best.get(new.done)
                if old is None or new.peak < old.peak:
                    best[new.done] = new
        front = sorted(best.values(), key=lambda s: (s.peak, s.live))[:width]
    return _order(front[0])


class _Graph:
    """The operands, writes and frees of each step; sets of steps are the bits of a number."""

    def __init__(self, steps: Sequence[Step], kept: Collection[Buffer]) -> None:
        writer = {b: k for k, s in enumerate(steps) for b in s.writes}
        self._reads = [tuple(b for b in s.reads if b in writer and b not in kept) for s in steps]
        self._readers = dict.fromkeys(writer, 0)
        self._needs = [0 for _ in steps]
        self._users = [0 for _ in steps]
        for k, s in enumerate(steps):
            for b in s.reads:
                if b in writer:
                    self._readers[b] |= 1 << k
                    self._needs[k] |= 1 << writer[b]
                    self._users[writer[b]] |= 1 << k
        self._sizes = {b: int(b.bytes) for b in writer}
        self._written = [sum(self._sizes[b] for b in s.writes) for s in steps]
        self._unread = [
            sum(self._sizes[b] for b in s.writes if not self._readers[b] and b not in kept)
            for s in steps
        ]

    def start(self) -> _State:
        """No step."""
        first = sum(1 << k for k, need in enumerate(self._needs) if not need)
        return _State(0, 0, 0, first, -1, None)

    def after(self, state: _State, k: int) -> _State:
        """One step more."""
        done = state.done | 1 << k
        live = state.live + self._written[k]
        peak = max(state.peak, live)
        live -= self._unread[k]
        for b in self._reads[k]:
            if not self._readers[b] & ~done:
                live -= self._sizes[b]
        ready = state.ready & ~(1 << k)
        for u in _bits(self._users[k]):
            if not self._needs[u] & ~done:
                ready |= 1 << u
        return _State(peak, live, done, ready, k, state)


def _order(state: _State) -> list[int]:
    order: list[int] = []
    while state.before is not None:
        order.append(state.last)
        state = state.before
    return order[::-1]


def _bits(x: int) -> list[int]:
    """The positions of the ones."""
    result: list[int] = []
    while x:
        low = x & -x
        result.append(low.bit_length() - 1)
        x ^= low
    return result
