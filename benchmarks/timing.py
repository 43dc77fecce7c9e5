"""Timing on a machine that is not idle, and tables of the results.

Contenders take turns, so that a slow moment hits them all, and the fastest turn of each counts:
other processes can only add to it.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Contender:
    """Something to be timed.

    Attributes:
        run: the function timed.
        after: a function called after each run, outside the timer.
    """

    run: Callable[[], object]
    after: Callable[[], object] = lambda: None


class Loop:
    """Calls a function on its own last result, `state`."""

    def __init__(self, fun: Callable[[Any], Any], start: Any):
        self._fun, self.state = fun, start

    def __call__(self) -> None:
        self.state = self._fun(self.state)


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison of xfunc with a peer, and its target.

    Attributes:
        peer: its name.
        ours: the cost of xfunc.
        theirs: the cost of the peer, in the same unit.
        target: a bound on the ratio.
        times_less: the ratio is theirs / ours, at least the target; else ours / theirs, at most it.
        unit: of the costs: seconds, or a count.
    """

    peer: str
    ours: float
    theirs: float
    target: float
    times_less: bool = False
    unit: str = "s"

    @property
    def ratio(self) -> float:
        """The ratio of the costs; 1 if both are zero."""
        above, below = (self.theirs, self.ours) if self.times_less else (self.ours, self.theirs)
        return above / below if below else 1.0 if not above else float("inf")

    @property
    def met(self) -> bool:
        return self.ratio >= self.target if self.times_less else self.ratio <= self.target

    def cells(self) -> list[str]:
        """The row as it is printed."""
        which, sign = ("peer / xfunc", ">=") if self.times_less else ("xfunc / peer", "<=")
        return [
            self.peer,
            show(self.ours, self.unit),
            show(self.theirs, self.unit),
            f"{which} = {self.ratio:.3g}",
            f"{sign} {self.target:g}",
            "target met" if self.met else "target missed",
        ]


def race(
    contenders: Mapping[str, Contender],
    rounds: int,
    calls: int = 1,
    budget: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds per call of each contender, the best of the rounds.

    Args:
        contenders: by name.
        rounds: how often each gets a turn, after one turn that does not count.
        calls: how often it is run in a turn.
        budget: seconds after which no further round begins.
        clock: what measures them; `time.process_time` for what one thread computes by itself.
    """
    best = dict.fromkeys(contenders, float("inf"))
    for c in contenders.values():
        c.run()
        c.after()
    end = time.perf_counter() + budget
    gc.collect()
    gc.disable()  # A collection would charge one contender for another's garbage.
    try:
        for _ in range(rounds):
            for name, c in contenders.items():
                best[name] = min(best[name], _turn(c, calls, clock))
            if time.perf_counter() > end:
                break
    finally:
        gc.enable()
    return best


def _turn(c: Contender, calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        c.run()
    seconds = (clock() - start) / calls
    c.after()
    return seconds


def answer(run: Callable[[], float]) -> None:
    """Run it for each line of the standard input; print its result and the seconds it took."""
    for _ in sys.stdin:
        gc.collect()
        start = time.perf_counter()
        result = run()
        print(json.dumps((result, time.perf_counter() - start)), flush=True)


def table(title: str, rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    head = ["peer", "xfunc", "the peer", "ratio", "target", ""]
    lines = [head, *(r.cells() for r in rows)]
    widths = [max(len(x[i]) for x in lines) for i in range(len(head))]
    made = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(x, widths, strict=True)) + " |" for x in lines
    ]
    made.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join([title, "", *made, ""])


def show(cost: float, unit: str) -> str:
    """``1.23 ms``."""
    if unit != "s":
        return f"{cost:g} {unit}"
    scale, name = next((s, n) for s, n in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")) if cost >= s)
    return f"{cost / scale:.3g} {name}"
