"""Solving the core of a cut problem with HiGHS, the solver of integer programs in scipy.

For each node two variables say whether it is kept and whether it is computed again. What is needed
is one or the other, and so is each operand of what is computed again. With no budget these
inequalities describe a minimum cut: they are differences of two variables once `kept + again` is
written as one, so linear programming gives whole numbers. The budget adds one row, of a knapsack,
and with it the need to branch. A library for flows would serve for the first kind alone; HiGHS
serves for both, and solves a program of this size in milliseconds.

Nothing that HiGHS answers is taken at its word: what a choice takes is counted again, in whole
numbers, and a choice that does not hold is replaced by one from the lower hull of all choices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from xfunc.cut_core import Core

Measure = Literal["bytes", "ticks"]


@dataclasses.dataclass(frozen=True)
class Limits:
    """When to stop a search: at so many branches, after so many seconds."""

    nodes: int | None = None
    seconds: float = math.inf


UNLIMITED = Limits()


class Infeasible(Exception):
    """No plan fits the budget."""


@dataclasses.dataclass(frozen=True)
class _Choice:
    """What is kept of a core, as positions, and what that takes."""

    kept: tuple[int, ...]
    bytes: int
    ticks: int

    def measured(self, by: tuple[Measure, Measure]) -> tuple[int, int]:
        return getattr(self, by[0]), getattr(self, by[1])


def solve(
    core: Core, by: tuple[Measure, Measure], budget: int | None, limits: Limits
) -> tuple[frozenset[int], bool]:
    """Ids of what to keep, and whether that is known to be best.

    Args:
        core: of the problem.
        by: what to minimise, and what to choose by among equals.
        budget: the bytes that may be kept.
        limits: of each of the searches.

    Raises:
        Infeasible: if no plan fits the budget.
    """
    program = _Program(core)
    caps: dict[Measure, int] = {}
    if budget is not None:
        caps["bytes"] = budget - core.kept_bytes
        if caps["bytes"] < 0:
            raise Infeasible
    best, exact = None, True
    for weights in program.stages(by):
        found, proved = program.minimum(weights, caps, limits)
        exact = exact and proved
        if best is None:
            best = found or program.near(caps)
        elif found is not None and found.measured(by) < best.measured(by):
            best = found
        if not exact:
            break
        caps[by[0]] = best.measured(by)[0]
    assert best is not None
    return core.kept.union(core.ids[k] for k in best.kept), exact


class _Program:
    """The integer program of a core. Its variables: `kept` of each node, then `again` of each."""

    def __init__(self, core: Core):
        self.core = core
        self.unit = math.gcd(*(b for b in core.bytes if b is not None)) or 1
        n = len(core.ids)
        none = [0] * n
        self.costs: dict[Measure, list[int]] = {
            "bytes": [(b or 0) // self.unit for b in core.bytes] + none,
            "ticks": none + [t or 0 for t in core.ticks],
        }
        self.may = [b is not None for b in core.bytes] + [t is not None for t in core.ticks]
        # Each row: these are there, or that one is not computed again.
        self.rows: list[tuple[int, int | None]] = [(k, None) for k in core.needed]
        for k, operands in enumerate(core.operands):
            self.rows += [(o, k) for o in operands]

    def stages(self, by: tuple[Measure, Measure]) -> list[dict[Measure, int]]:
        """What to minimise, one after the other, each while the first of `by` keeps its minimum.

        One sum is enough, and is much faster, if it can be told apart in floating point.
        """
        first, second = by
        most = {m: sum(costs) for m, costs in self.costs.items()}
        if most[first] * (most[second] + 1) < _PRECISE:
            return [{first: most[second] + 1, second: 1}]
        return [{first: 1}, {second: 1}]

    def minimum(
        self, weights: Mapping[Measure, int], caps: Mapping[Measure, int], limits: Limits
    ) -> tuple[_Choice | None, bool]:
        """The choice of the least weight within `caps`, and whether that is proved.

        None if none was found, or what was found does not stand up to a count in whole numbers.
        """
        if not self.rows:  # There is nothing to decide.
            return _Choice((), 0, 0), True
        # Not at the top: scipy is slow to import, and most programs have no need of it.
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        n = len(self.core.ids)
        entries: list[tuple[int, int, float]] = []
        lower: list[float] = []
        upper: list[float] = []
        for r, (there, user) in enumerate(self.rows):
            entries += [(r, there, 1.0), (r, n + there, 1.0)]
            if user is not None:
                entries.append((r, n + user, -1.0))
            lower.append(1.0 if user is None else 0.0)
            upper.append(math.inf)
        for measure, cap in caps.items():
            r = len(lower)
            entries += [(r, k, float(c)) for k, c in enumerate(self.costs[measure]) if c]
            lower.append(-math.inf)
            # Half a unit more, so that rounding cannot exclude what just fits.
            upper.append(cap // (self.unit if measure == "bytes" else 1) + 0.5)
        row, column, value = zip(*entries, strict=True)
        options: dict[str, Any] = {"mip_rel_gap": 0.0}
        if limits.nodes is not None:
            options["node_limit"] = limits.nodes
        if limits.seconds != math.inf:
            options["time_limit"] = limits.seconds
        found = milp(
            sum(w * np.array(self.costs[m], dtype=float) for m, w in weights.items()),
            integrality=np.ones(2 * n),
            bounds=Bounds(np.zeros(2 * n), np.array(self.may, dtype=float)),
            constraints=LinearConstraint(
                csr_array((value, (row, column)), shape=(len(lower), 2 * n)),
                np.array(lower),
                np.array(upper),
            ),
            options=options,
        )
        if found.x is None:
            return None, False
        choice = self.counted([k for k in range(n) if found.x[k] > 0.5])
        if choice is None or any(getattr(choice, m) > cap for m, cap in caps.items()):
            return None, False
        return choice, found.status == _OPTIMAL

    def counted(self, kept: list[int]) -> _Choice | None:
        """What a choice takes, less what it keeps for nothing; None if it lacks what it needs."""
        core = self.core
        chosen, wanted = frozenset(kept), set(core.needed)
        used: list[int] = []
        total = ticks = 0
        for k in reversed(range(len(core.ids))):  # Users come first.
            if k not in wanted:
                continue
            size, time = core.bytes[k], core.ticks[k]
            if k in chosen and size is not None:
                used.append(k)
                total += size
            elif time is not None:
                ticks += time
                wanted.update(core.operands[k])
            else:
                return None
        return _Choice(tuple(reversed(used)), total, ticks)

    def weight(self, choice: _Choice, weights: Mapping[Measure, int]) -> int:
        return sum(
            w * getattr(choice, m) // (self.unit if m == "bytes" else 1) for m, w in weights.items()
        )

    def near(self, caps: Mapping[Measure, int]) -> _Choice:
        """A good choice within `caps` on the bytes: the best on the lower hull of all choices.

        There the weighted sum of bytes and ticks is least for some weights. That is a minimum cut,
        and takes no search.
        """
        room = caps.get("bytes", math.inf)
        fewest, _ = self.minimum({"bytes": 1}, {}, UNLIMITED)
        fast, _ = self.minimum({"ticks": 1}, {}, UNLIMITED)
        if fewest is None or fast is None:
            raise RuntimeError("HiGHS did not solve a linear program")
        if fewest.bytes > room:
            raise Infeasible
        while fast.bytes > room:
            weights: dict[Measure, int] = {
                "bytes": fewest.ticks - fast.ticks,
                "ticks": (fast.bytes - fewest.bytes) // self.unit,
            }
            choice, _ = self.minimum(weights, {}, UNLIMITED)
            if choice is None or self.weight(choice, weights) >= self.weight(fewest, weights):
                return fewest
            if choice.bytes > room:
                fast = choice
            else:
                fewest = choice
        return fast


_PRECISE = 2**44  # Larger than what HiGHS tells from zero by a margin.
_OPTIMAL = 0  # `status` of scipy's milp
