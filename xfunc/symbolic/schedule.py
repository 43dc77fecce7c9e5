"""One order of a program's steps for all sizes in a box.

Candidates are the order as written, list scheduling with sizes compared over the whole box (see
`Always`; ties go to the step whose results are read soonest, then to the earlier one), and searches
at a few sizes. Among the candidates that are nowhere above the order as written, the one with the
smallest maximal excess over the best candidate is taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from xfunc.graph.scheduled import in_order, without_barriers
from xfunc.hlo import Module
from xfunc.hlo.attributes import said
from xfunc.hlo.estimate import liveness
from xfunc.hlo.estimate.buffers import Step
from xfunc.hlo.estimate.occupancy import Task, held, results
from xfunc.hlo.estimate.schedule import just_in_time, memory_order
from xfunc.hlo.estimate.search import searched_order
from xfunc.hlo.flat import flat
from xfunc.hlo.write import numbered, write
from xfunc.symbolic.interpolation import SymbolicModule
from xfunc.symbolic.peak_bound import SymbolicPeak, samples
from xfunc.symbolic.polynomial import Env
from xfunc.symbolic.symbolic_int import Always, Facts, Judge, TrackedModule

_WIDTH, _TRIES = 64, 10_000  # see `searched_order`
_SEARCHED = 400  # steps of a computation; longer ones are not searched

Positions = tuple[int, ...]
"""The positions of the steps as written, in another order."""


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """An order of the steps of a program's entry.

    Attributes:
        positions: of the steps.
        peak: the memory that the program holds in this order, at all sizes.
        as_written: the same, for the order as written.
    """

    positions: Positions
    peak: SymbolicPeak
    as_written: SymbolicPeak


def schedule(symbolic: SymbolicModule, donated: Sequence[int] = ()) -> Schedule:
    """The order that suits all sizes.

    Args:
        symbolic: a program, as `prepared` makes it.
        donated: the parameters with memory that results may reuse.
    """
    envs = list({tuple(e.items()): e for e in samples(symbolic.box)}.values())

    def task(env: Env, facts: Facts | None = None) -> Task:
        module = TrackedModule(symbolic)
        module.at(env, facts)
        return liveness.task_of(module.module.entry, donated)

    tasks = [task(e) for e in envs]
    always = task(envs[0], Always(Judge(TrackedModule(symbolic).basis, symbolic.box)))
    found = chosen([list_order(always), *candidates(tasks)], tasks)

    def peak(order: Positions) -> SymbolicPeak:
        return SymbolicPeak(symbolic, donated, [lambda task: reordered(task, order)])

    written = tuple(range(len(found)))
    return Schedule(found, peak(found), peak(written))


def arranged(module: Module) -> Module:
    """A program with its steps in the candidate order that needs the least memory."""
    assert module.graph is not None
    graph = without_barriers(flat(module.graph))
    data, numbers = numbered(graph)
    task = liveness.task_of(Module.from_bytes(data).entry)
    order = chosen([*candidates([task])], [task])
    nodes = {numbers[id(n)]: n for n in graph.nodes if id(n) in numbers}
    ids = [s.instruction.id for s in reordered(task, order)]
    steps = [nodes[k] for k in ids if k in nodes]
    return Module.from_bytes(write(in_order(graph, steps, said({"inlineable": "false"}))))


def list_order(task: Task) -> Positions:
    """List scheduling; see `memory_order`."""
    steps = task.memory.steps
    first: dict[int, int] = {}
    writer = {b: k for k, s in enumerate(steps) for b in s.writes}
    for k, s in enumerate(steps):
        for b in s.reads:
            if b in writer:
                first.setdefault(writer[b], k)
    order = memory_order(steps, set(results(task.memory)), lambda k: first.get(k, len(steps)) - k)
    return positions(task, order)


def candidates(tasks: Sequence[Task]) -> Iterator[Positions]:
    """Orders that suit single sizes, and the order as written."""
    for task in tasks:
        steps = task.memory.steps
        yield list_order(task)
        yield positions(task, just_in_time(steps))
        yield positions(task, just_in_time(reordered(task, list_order(task))))
        if len(steps) <= _SEARCHED:
            found = searched_order(steps, set(results(task.memory)), _WIDTH, _TRIES)
            yield tuple(found)
            yield positions(task, just_in_time(reordered(task, tuple(found))))


def chosen(orders: Sequence[Positions], tasks: Sequence[Task]) -> Positions:
    """The order that is the least above the best one of each task, and never above that as written.

    Args:
        orders: candidates.
        tasks: of a computation at several sizes.
    """
    written = tuple(range(len(tasks[0].memory.steps)))
    peaks = {order: [_peak(order, t) for t in tasks] for order in dict.fromkeys([written, *orders])}
    best = [min(p) for p in zip(*peaks.values(), strict=True)]

    def above(order: Positions) -> float:
        return max(n / max(least, 1) for n, least in zip(peaks[order], best, strict=True))

    fair = [
        order
        for order, found in peaks.items()
        if all(n <= limit for n, limit in zip(found, peaks[written], strict=True))
    ]
    return min(fair, key=above)


def positions(task: Task, order: Sequence[Step]) -> Positions:
    """Where the steps of an order are as written."""
    place = {id(s): k for k, s in enumerate(task.memory.steps)}
    return tuple(place[id(s)] for s in order)


def reordered(task: Task, order: Positions) -> list[Step]:
    """The steps in an order."""
    return [task.memory.steps[k] for k in order]


def _peak(order: Positions, task: Task) -> int:
    return int(held(reordered(task, order), task).bytes)
