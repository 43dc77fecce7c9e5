"""The memory that a computation holds while its steps run in some order."""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from xfunc.hlo.estimate.buffers import Buffer, Flow, Step, flow, leaves
from xfunc.hlo.estimate.schedule import just_in_time, memory_order
from xfunc.hlo.module import Computation, Instruction

Amount = tuple[int, Instruction]
"""Bytes, and the instruction that wrote them."""
_Span = tuple[int, Instruction, int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """The memory that a computation holds in addition to its arguments, as in `Peak`."""

    bytes: int = 0
    at: Instruction | None = None
    held: tuple[Amount, ...] = ()
    points: tuple[Amount, ...] = ()
    spans: tuple[_Span, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A computation to analyse.

    Attributes:
        memory: its reads and writes.
        places: the outside memory in which results must end up.
        reserves: whether the other results have their memory from the start.
        known: the memory found for other computations, by id.
        exceeds: whether more is held than at any step before.
    """

    memory: Flow
    places: Mapping[Buffer, Buffer]
    reserves: bool
    known: dict[int, Found]
    exceeds: Callable[[int, int], bool] = operator.gt


def best(task: Task) -> tuple[Sequence[Step], Found]:
    """The best order of the steps, and the memory held in it."""
    orders = [start(task) for start in STARTS]
    orders += [just_in_time(order) for order in orders]
    return min(((order, held(order, task)) for order in orders), key=lambda f: f[1].bytes)


def held(order: Sequence[Step], task: Task) -> Found:
    """The memory held while the steps run in this order."""
    return _Run(order, task).found()


STARTS: tuple[Callable[[Task], Sequence[Step]], ...] = (
    lambda task: task.memory.steps,
    lambda task: memory_order(task.memory.steps, set(results(task.memory))),
)
"""The initial orders; the compiler is expected to take the best of these and their variants."""


class _Run:
    """The steps in one order."""

    def __init__(self, order: Sequence[Step], task: Task) -> None:
        self._order, self._task = order, task
        self._last = last_reads(order, task.memory)
        self._home: dict[Buffer, Buffer] = {}  # the buffer that owns each one's memory
        self._tenants: dict[Buffer, int] = {}
        self._ends: dict[int, list[Buffer]] = {}
        self._live = 0
        self._points: list[Amount] = []
        self._since: dict[Buffer, int] = {}  # the point from which memory is held
        self._spans: list[_Span] = []
        # The memory of future results, smallest first, and the steps that write them.
        self._reserved: dict[Buffer, int] = {}
        if task.reserves:
            own = set(results(task.memory)) - task.places.keys()
            self._reserved = {b: t for t, s in enumerate(order) for b in s.writes if b in own}
            self._live = sum(b.bytes for b in self._reserved)
        self._rooms = sorted(self._reserved, key=lambda b: b.bytes)

    def found(self) -> Found:
        best = Found()
        points = self._points
        for t, step in enumerate(self._order):
            for b, candidates in step.writes.items():
                self._write(b, candidates, t)
            inside = _inside(step, self._task.known)
            saved = self._room_for(inside.held, t)
            start = len(points)
            self._spans += [(n, i, start + a, start + b) for n, i, a, b in inside.spans]
            points += [(self._live + max(0, n - saved), i) for n, i in inside.points]
            if not inside.points:
                points.append((self._live, step.instruction))
            if self._task.exceeds(self._live + inside.bytes - saved, best.bytes):
                own = [(b.bytes, b.instruction) for b in {**self._tenants, **self._reserved}]
                at = inside.at or step.instruction
                best = Found(self._live + inside.bytes - saved, at, (*own, *inside.held))
            for b in self._ends.pop(t, ()):
                self._free(self._home[b])
        since = {**self._since, **dict.fromkeys(self._reserved, 0)}
        self._spans += [(b.bytes, b.instruction, start, len(points)) for b, start in since.items()]
        return dataclasses.replace(best, points=tuple(points), spans=tuple(self._spans))

    def _write(self, b: Buffer, candidates: Sequence[Buffer], now: int) -> None:
        home = self._home[b] = self._find_home(b, candidates, now)
        if home.outside:
            return
        if home is b and b not in self._reserved:
            self._live += b.bytes
            self._since[b] = len(self._points)
        self._tenants[home] = self._tenants.get(home, 0) + 1
        self._ends.setdefault(self._last.get(b, now), []).append(b)

    def _free(self, home: Buffer) -> None:
        self._tenants[home] -= 1
        if self._tenants[home] == 0:
            del self._tenants[home]
            if home not in self._reserved:
                self._live -= home.bytes
                start = self._since.pop(home)
                self._spans.append((home.bytes, home.instruction, start, len(self._points)))

    def _find_home(self, b: Buffer, candidates: Sequence[Buffer], now: int) -> Buffer:
        """The buffer that owns the memory of a buffer: by default itself."""
        if b.outside:
            return b
        place = self._task.places.get(b)
        if place is not None and self._last.get(place, -1) < now + (place in candidates):
            return place
        if b in self._reserved:
            return b
        end = self._last.get(b, now)
        for other in candidates:
            if self._last[other] == now and not other.outside:
                home = self._home[other]
                late = end >= self._reserved.get(home, end + 1)
                if not home.outside and self._tenants[home] == 1 and not late:
                    return home
        return next(self._room(b.bytes, end, b), b)

    def _room(self, bytes: int, until: int, b: Buffer | None = None) -> Iterator[Buffer]:
        """The unused memory of future results, beginning with the smallest that is large enough.

        It is free until its result is written, perhaps in place of `b`.
        """
        first = bisect.bisect_left(self._rooms, bytes, key=lambda room: room.bytes)
        for room in self._rooms[first:]:
            written = self._reserved[room]
            in_place = written == until and b in self._order[written].writes[room]
            if (written > until or in_place) and room not in self._tenants:
                yield room

    def _room_for(self, held: Sequence[Amount], now: int) -> int:
        """How much of the memory a loop holds fits in that of future results."""
        saved = 0
        taken: set[Buffer] = set()
        for n, _ in sorted(held, key=lambda h: -h[0]) if self._rooms else ():
            room = next((room for room in self._room(n, now) if room not in taken), None)
            if room is not None:
                taken.add(room)
                saved += n
        return saved


def last_reads(order: Sequence[Step], memory: Flow) -> dict[Buffer, int]:
    """The last step that reads each buffer; for results, the number of steps."""
    last = {b: t for t, step in enumerate(order) for b in step.reads}
    return last | dict.fromkeys(results(memory), len(order))


def _inside(step: Step, known: dict[int, Found]) -> Found:
    """The memory held inside a loop, a branch or a call, without its state and results."""
    if step.instruction.opcode not in ("while", "conditional", "call"):
        return Found()
    called = step.instruction.called_computations
    for c in called:
        if c.id not in known:
            known[c.id] = _of_body(c, step.instruction.opcode == "while", known)
    return max((known[c.id] for c in called), key=lambda f: f.bytes)


def _of_body(body: Computation, is_loop: bool, known: dict[int, Found]) -> Found:
    memory = flow(body)
    places: dict[Buffer, Buffer] = {}
    states = [leaf[0] for a in memory.arguments for leaf in leaves(a)] if is_loop else None
    for k, leaf in enumerate(leaves(memory.result)):
        for b in leaf:  # Constants have none.
            # A branch writes its results where its caller wants them.
            place = states[k] if states else Buffer(b.bytes, b.instruction, outside=True)
            places.setdefault(b, place)
    return best(Task(memory, places, False, known))[1]


def results(memory: Flow) -> list[Buffer]:
    """The buffers of a computation's results; constants have none."""
    return [b for leaf in leaves(memory.result) for b in leaf]
