"""How much memory a module takes, and for what: an estimate, made without a compiler.

The entry's arguments are there from start to end. What is written lives until it is last read,
results until the end. Which instructions write memory is said in `buffers`. The steps are taken in
their own order or in that of `memory_order`, whichever needs less, as XLA does; and so is the body
of a loop, which needs what it writes on top of the loop's state. The new state is written over the
old one if nothing reads that any more.

What is lost where a compiler lays all this out in one block is not counted.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from xfunc.hlo.buffers import Buffer, Flow, Step, flow, leaves
from xfunc.hlo.inline import inline_calls
from xfunc.hlo.module import Computation, Instruction, Module
from xfunc.hlo.schedule import just_in_time, memory_order
from xfunc.hlo.simplify import simplify


@dataclasses.dataclass(frozen=True)
class Held:
    """Memory, and what it is for.

    Attributes:
        bytes: how much.
        line: the user's, as ``file:line``; empty if it is not known.
        name: of the operation there.
    """

    bytes: int
    line: str
    name: str


@dataclasses.dataclass(frozen=True)
class Peak:
    """The memory of a module.

    Attributes:
        bytes: what is held at most: arguments, results and temporaries together.
        arguments: the bytes of the arguments alone.
        at: the step at which that is.
        largest: the arrays that are held then, the largest first.
        timeline: what is held in all at each step, in order; a loop's body is told once.
    """

    bytes: int
    arguments: int
    at: Held
    largest: tuple[Held, ...]
    timeline: tuple[Held, ...]


@dataclasses.dataclass(frozen=True)
class LiveRange:
    """How long an array of the entry is in memory.

    Attributes:
        instruction: what wrote it.
        bytes: its size.
        start: the number of the step that writes it; -1 for an argument.
        end: that of the last step that reads it; for a result, the number of steps.
    """

    instruction: Instruction
    bytes: int
    start: int
    end: int


def peak(module: Module, donated: Sequence[int] = ()) -> Peak:
    """The memory of a module.

    Args:
        module: as it is before it is compiled.
        donated: the parameters whose memory results may take over. XLA pairs them, in the order in
            which they are given, with results of the same size, in order.
    """
    entry = _prepared(module).entry
    memory = flow(entry)
    _, found = _best(_Task(memory, _donations(memory, donated), True, {}))
    arguments = [(p.bytes, p) for p in entry.parameters]
    given = sum(n for n, _ in arguments)
    return Peak(
        given + found.bytes,
        given,
        _held(given + found.bytes, found.at or entry.root),
        tuple(_held(*h) for h in sorted([*arguments, *found.held], key=lambda h: -h[0])),
        tuple(_held(given + n, i) for n, i in found.points),
    )


def live_ranges(module: Module) -> tuple[LiveRange, ...]:
    """How long each array of the entry is in memory, in the order that `peak` assumes."""
    memory = flow(_prepared(module).entry)
    order, _ = _best(_Task(memory, {}, True, {}))
    last = _last_reads(order, memory)
    start = {b: t for t, step in enumerate(order) for b in step.writes}
    start |= {leaf[0]: -1 for a in memory.arguments for leaf in leaves(a)}
    return tuple(
        LiveRange(b.instruction, b.bytes, t, last.get(b, t))
        for b, t in sorted(start.items(), key=lambda item: item[1])
    )


def _prepared(module: Module) -> Module:
    return simplify(inline_calls(module), bodies=True)


def _held(bytes: int, i: Instruction) -> Held:
    data = i.proto.metadata
    line = f"{data.source_file}:{data.source_line}" if data.source_file else ""
    return Held(bytes, line, data.op_name or i.opcode)


# -- the walk over the steps ----------------------------------------------------------------------

_Amount = tuple[int, Instruction]


@dataclasses.dataclass(frozen=True, eq=False)
class _Found:
    """What a computation holds beside its arguments, as in `Peak`."""

    bytes: int = 0
    at: Instruction | None = None
    held: tuple[_Amount, ...] = ()
    points: tuple[_Amount, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class _Task:
    """A computation whose memory is asked for.

    Attributes:
        memory: what it does to it.
        places: the memory outside in which results are to be at the end.
        reserves: whether the other results have theirs from the start.
        known: what has been found of other computations, by id.
    """

    memory: Flow
    places: Mapping[Buffer, Buffer]
    reserves: bool
    known: dict[int, _Found]


def _best(task: _Task) -> tuple[Sequence[Step], _Found]:
    """The best order of the steps, and what is held in it."""
    steps, result = task.memory.steps, task.memory.result
    orders = [steps, memory_order(steps, {b for leaf in leaves(result) for b in leaf})]
    orders += [just_in_time(order) for order in orders]
    return min(((order, _Run(order, task).found()) for order in orders), key=lambda f: f[1].bytes)


class _Run:
    """The steps in one order."""

    def __init__(self, order: Sequence[Step], task: _Task) -> None:
        self._order, self._task = order, task
        self._last = _last_reads(order, task.memory)
        self._home: dict[Buffer, Buffer] = {}  # in whose memory a buffer is
        self._tenants: dict[Buffer, int] = {}
        self._ends: dict[int, list[Buffer]] = {}
        self._live = 0
        # Memory of results to come, the smallest first, and the steps that write them.
        self._idle: list[tuple[int, int, Buffer]] = []
        if task.reserves:
            results = set(_results(task.memory)) - task.places.keys()
            for t, step in enumerate(order):
                self._idle += [(b.bytes, t, b) for b in step.writes if b in results]
            self._idle.sort(key=lambda slot: slot[:2])
            self._live = sum(n for n, _, _ in self._idle)
        self._reserved = {b: t for _, t, b in self._idle}

    def found(self) -> _Found:
        best = _Found()
        points: list[_Amount] = []
        for t, step in enumerate(self._order):
            for b, candidates in step.writes.items():
                self._write(b, candidates, t)
            inside = _inside(step, self._task.known)
            saved = self._room_for(inside.held, t)
            points += [(self._live + max(0, n - saved), i) for n, i in inside.points]
            if not inside.points:
                points.append((self._live, step.instruction))
            if self._live + inside.bytes - saved > best.bytes:
                held = [(b.bytes, b.instruction) for b in {**self._tenants, **self._reserved}]
                at = inside.at or step.instruction
                best = _Found(self._live + inside.bytes - saved, at, (*held, *inside.held))
            for b in self._ends.pop(t, ()):
                self._free(self._home[b])
        return dataclasses.replace(best, points=tuple(points))

    def _write(self, b: Buffer, candidates: Sequence[Buffer], now: int) -> None:
        home = self._home[b] = self._find_home(b, candidates, now)
        if home.outside:
            return
        if home is b and b not in self._reserved:
            self._live += b.bytes
        self._tenants[home] = self._tenants.get(home, 0) + 1
        self._ends.setdefault(self._last.get(b, now), []).append(b)

    def _free(self, home: Buffer) -> None:
        self._tenants[home] -= 1
        if self._tenants[home] == 0:
            del self._tenants[home]
            if home not in self._reserved:
                self._live -= home.bytes

    def _find_home(self, b: Buffer, candidates: Sequence[Buffer], now: int) -> Buffer:
        """In whose memory a buffer is written; its own, if there is no other."""
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
        return next((home for _, home in self._rooms(b.bytes, end)), b)

    def _rooms(self, bytes: int, until: int) -> Iterator[tuple[int, Buffer]]:
        """Memory of results to come that nothing is in, the smallest that is large enough first."""
        first = bisect.bisect_left(self._idle, bytes, key=lambda slot: slot[0])
        for size, written, b in self._idle[first:]:
            if written > until and b not in self._tenants:
                yield size, b

    def _room_for(self, held: Sequence[_Amount], now: int) -> int:
        """How much of what a loop holds finds room in the memory of results to come."""
        saved = 0
        taken: set[Buffer] = set()
        for n, _ in sorted(held, key=lambda h: -h[0]) if self._idle else ():
            home = next((b for _, b in self._rooms(n, now) if b not in taken), None)
            if home is not None:
                taken.add(home)
                saved += n
        return saved


def _last_reads(order: Sequence[Step], memory: Flow) -> dict[Buffer, int]:
    last = {b: t for t, step in enumerate(order) for b in step.reads}
    return last | {b: len(order) for leaf in leaves(memory.result) for b in leaf}


def _inside(step: Step, known: dict[int, _Found]) -> _Found:
    """What is held inside of a loop, a branch or a call, beside its state and its results."""
    if step.instruction.opcode not in ("while", "conditional", "call"):
        return _Found()
    called = step.instruction.called_computations
    for c in called:
        if c.id not in known:
            known[c.id] = _of_body(c, step.instruction.opcode == "while", known)
    return max((known[c.id] for c in called), key=lambda f: f.bytes)


def _of_body(body: Computation, is_loop: bool, known: dict[int, _Found]) -> _Found:
    memory = flow(body)
    places: dict[Buffer, Buffer] = {}
    states = [leaf[0] for a in memory.arguments for leaf in leaves(a)] if is_loop else None
    for k, b in enumerate(_results(memory)):
        # A branch writes its results where its caller wants them.
        places.setdefault(b, states[k] if states else Buffer(b.bytes, b.instruction, outside=True))
    return _best(_Task(memory, places, False, known))[1]


def _donations(memory: Flow, donated: Sequence[int]) -> dict[Buffer, Buffer]:
    """The arguments in whose memory results are to be."""
    free: dict[int, list[Buffer]] = {}  # by size
    for number in reversed(donated):
        for (b,) in leaves(memory.arguments[number]):
            free.setdefault(b.bytes, []).append(b)
    places: dict[Buffer, Buffer] = {}
    for b in dict.fromkeys(_results(memory)):
        if free.get(b.bytes):
            places[b] = free[b.bytes].pop()
    return places


def _results(memory: Flow) -> list[Buffer]:
    return [leaf[0] for leaf in leaves(memory.result)]
