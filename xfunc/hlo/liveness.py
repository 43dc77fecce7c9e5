"""How much memory a module takes, and for what: an estimate, made without a compiler.

The entry's arguments are there from start to end. What is written lives until it is last read,
results until the end. Which instructions write memory is said in `buffers`. The steps are taken in
their own order or in that of `memory_order`, whichever needs less, as XLA does; and so is the body
of a loop, which needs what it writes on top of the loop's state. The new state is written over the
old one if nothing reads that any more.

What is lost where a compiler lays all this out in one block is not counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from xfunc.hlo.buffers import Buffer, Flow, Step, flow, leaves
from xfunc.hlo.inline import inline_calls
from xfunc.hlo.module import Computation, Instruction, Module
from xfunc.hlo.schedule import memory_order
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
    _, found = _best(memory, _donations(memory, donated), {})
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
    order, _ = _best(memory, {}, {})
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


def _best(
    memory: Flow, places: Mapping[Buffer, Buffer], known: dict[int, _Found]
) -> tuple[Sequence[Step], _Found]:
    """The better order of the steps, and what is held in it.

    Args:
        memory: of a computation.
        places: the memory outside in which results are to be at the end.
        known: what has been found of other computations of the module.
    """
    kept = {b for leaf in leaves(memory.result) for b in leaf}
    orders = [memory.steps, memory_order(memory.steps, kept)]
    found = [(order, _run(order, memory, places, known)) for order in orders]
    return min(found, key=lambda f: f[1].bytes)


def _run(
    order: Sequence[Step], memory: Flow, places: Mapping[Buffer, Buffer], known: dict[int, _Found]
) -> _Found:
    last = _last_reads(order, memory)
    home: dict[Buffer, Buffer] = {}  # in whose memory a buffer is
    tenants: dict[Buffer, int] = {}
    ends: dict[int, list[Buffer]] = {}
    live = 0
    best = _Found()
    points: list[_Amount] = []
    for t, step in enumerate(order):
        for b, candidates in step.writes.items():
            home[b] = _home(b, candidates, t, last, places, home, tenants)
            if home[b].outside:
                continue
            live += b.bytes if home[b] is b else 0
            tenants[home[b]] = tenants.get(home[b], 0) + 1
            ends.setdefault(last.get(b, t), []).append(b)
        inside = _inside(step, known)
        points += [(live + n, i) for n, i in inside.points] or [(live, step.instruction)]
        if live + inside.bytes > best.bytes:
            held = [(b.bytes, b.instruction) for b in tenants]
            at = inside.at or step.instruction
            best = _Found(live + inside.bytes, at, (*held, *inside.held))
        for b in ends.pop(t, ()):
            tenants[home[b]] -= 1
            if tenants[home[b]] == 0:
                del tenants[home[b]]
                live -= home[b].bytes
    return dataclasses.replace(best, points=tuple(points))


def _home(
    b: Buffer,
    candidates: Sequence[Buffer],
    now: int,
    last: Mapping[Buffer, int],
    places: Mapping[Buffer, Buffer],
    home: Mapping[Buffer, Buffer],
    tenants: Mapping[Buffer, int],
) -> Buffer:
    """In whose memory a buffer is written; its own, if there is no other."""
    place = places.get(b)
    if place is not None and last.get(place, -1) < now + (place in candidates):
        return place
    for other in candidates:
        if last[other] == now and not other.outside:
            found = home[other]
            if not found.outside and tenants[found] == 1:
                return found
    return b


def _last_reads(order: Sequence[Step], memory: Flow) -> dict[Buffer, int]:
    last = {b: t for t, step in enumerate(order) for b in step.reads}
    return last | {b: len(order) for leaf in leaves(memory.result) for b in leaf}


def _inside(step: Step, known: dict[int, _Found]) -> _Found:
    """What a loop or a branch holds while it runs, beside its state and its results."""
    if step.instruction.opcode not in ("while", "conditional"):
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
    return _best(memory, places, known)[1]


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
