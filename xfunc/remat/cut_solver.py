"""Solving the core of a cut problem with HiGHS, scipy's solver for integer programs.

For each node, two variables say whether it is kept and whether it is recomputed. A needed node is
one or the other, and so is each operand of a recomputed node. Without a budget, these inequalities
describe a minimum cut: they are differences of two variables once `kept + again` is written as one,
so linear programming gives integers. The budget adds a knapsack row, and with it the need to
branch. A network-flow library could only solve the first kind; HiGHS solves both, and a program of
this size in milliseconds.

Answers from HiGHS are not trusted: the cost of a choice is recomputed in integers, and if no choice
holds up, one from the lower hull of all choices is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from xfunc.remat.cut_core import Core

Measure = Literal["bytes", "ticks"]
Weights = Mapping[Measure, int]
Caps = Mapping[Measure, int]

_OPTIMAL = 0  # `status` of scipy's milp
_PRECISE = 2**44  # The largest sum of weights: HiGHS must resolve a difference of one.
_BASE = 2**16


@dataclasses.dataclass(frozen=True)
class Limits:
    """When to stop a search: after a number of branches, or of seconds."""

    nodes: int | None = None
    seconds: float = math.inf


UNLIMITED = Limits()


class Infeasible(Exception):
    """No plan fits the budget."""


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The kept positions of a core, and their cost; `bytes` are in the program's units."""

    kept: tuple[int, ...]
    bytes: int
    ticks: int

    def measured(self, by: tuple[Measure, Measure]) -> tuple[int, int]:
        return getattr(self, by[0]), getattr(self, by[1])

    def weighed(self, weights: Weights) -> int:
        return sum(w * getattr(self, m) for m, w in weights.items())


def solve(
    core: Core, by: tuple[Measure, Measure], budget: int | None, limits: Limits
) -> tuple[frozenset[int], bool]:
    """Ids of the nodes to keep, and whether the choice is proven optimal.

    Args:
        core: of the problem.
        by: the objective, and the tie-breaker.
        budget: the bytes that may be kept.
        limits: of each search.

    Raises:
        Infeasible: if no plan fits the budget.
    """
    program = _Program(core)
    caps: dict[Measure, int] = {}
    if budget is not None:
        caps["bytes"] = (budget - core.kept_bytes) // program.unit
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
    """The integer program of a core. Its variables: `kept` of each node, then `again` of each.

    Attributes:
        unit: the number of bytes that count as one.
        costs: the cost of setting each variable to one.
        allowed: whether each variable may be one.
    """

    def __init__(self, core: Core):
        self.core = core
        self.unit = math.gcd(*(b for b in core.bytes if b is not None)) or 1
        none = [0] * len(core.ids)
        self.costs: dict[Measure, list[int]] = {
            "bytes": [(b or 0) // self.unit for b in core.bytes] + none,
            "ticks": none + [t or 0 for t in core.ticks],
        }
        self.allowed = [c is not None for c in (*core.bytes, *core.ticks)]

    def stages(self, by: tuple[Measure, Measure]) -> list[Weights]:
        """The objectives in order; each is minimised while the first of `by` keeps its minimum.

        One weighted sum does both at once, and much faster, unless its numbers are too large.
        """
        first, second = by
        most = {m: sum(costs) for m, costs in self.costs.items()}
        if most[first] * (most[second] + 1) < _PRECISE:
            return [{first: most[second] + 1, second: 1}]
        return [{first: 1}, {second: 1}]

    def minimum(self, weights: Weights, caps: Caps, limits: Limits) -> tuple[_Choice | None, bool]:
        """The choice of least weight within `caps`, and whether that is proved.

        None if HiGHS finds no choice, or one that does not hold up.
        """
        if not self.core.needed:
            return _Choice((), 0, 0), True
        kept, proved = self.asked(weights, caps, limits)
        choice = None if kept is None else self.counted(kept)
        if choice is None or any(getattr(choice, m) > cap for m, cap in caps.items()):
            return None, False
        return choice, proved

    def asked(self, weights: Weights, caps: Caps, limits: Limits) -> tuple[list[int] | None, bool]:
        """HiGHS's answer: the positions to keep, and whether the search was completed."""
        # Not at the top: scipy is slow to import, and most programs do not need it.
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        n = len(self.core.ids)
        rows: list[tuple[float, dict[int, float], float]] = []
        for k in self.core.needed:
            rows.append((1.0, {k: 1.0, n + k: 1.0}, math.inf))
        for k, operands in enumerate(self.core.operands):
            rows += [(0.0, {o: 1.0, n + o: 1.0, n + k: -1.0}, math.inf) for o in operands]
        columns = 2 * n
        for measure, cap in caps.items():
            digits = _in_digits(self.costs[measure], cap, carry=columns)
            # Half a unit more, so that an exact fit is not excluded: these are integers.
            rows += [(-math.inf, row, limit + 0.5) for row, limit in digits]
            columns += len(digits) - 1
        entries = [(r, k, x) for r, (_, row, _) in enumerate(rows) for k, x in row.items()]
        row, column, value = zip(*entries, strict=True)
        highest = np.full(columns, math.inf)
        highest[: 2 * n] = self.allowed
        objective = np.zeros(columns)
        for measure, weight in weights.items():
            objective[: 2 * n] += weight * np.array(self.costs[measure], dtype=float)

        options: dict[str, Any] = {"mip_rel_gap": 0.0}
        if limits.nodes is not None:
            options["node_limit"] = limits.nodes
        if limits.seconds != math.inf:
            options["time_limit"] = limits.seconds
        low, high = np.array([r[0] for r in rows]), np.array([r[2] for r in rows])
        found = milp(
            objective,
            integrality=np.ones(columns),
            bounds=Bounds(np.zeros(columns), highest),  # pyright: ignore[reportArgumentType]
            constraints=LinearConstraint(
                csr_array((value, (row, column)), shape=(len(rows), columns)),
                low,  # pyright: ignore[reportArgumentType]
                high,  # pyright: ignore[reportArgumentType]
            ),
            options=options,
        )
        if found.x is None:
            return None, False
        return [k for k in range(n) if found.x[k] > 0.5], found.status == _OPTIMAL

    def counted(self, kept: list[int]) -> _Choice | None:
        """A choice without redundant nodes, and its cost; None if it is incomplete."""
        core = self.core
        chosen, wanted = frozenset(kept), set(core.needed)
        used: list[int] = []
        for k in reversed(range(len(core.ids))):  # Users come first.
            if k not in wanted:
                continue
            if k in chosen:
                used.append(k)
            elif core.ticks[k] is None:
                return None
            else:
                wanted.update(core.operands[k])
        again = wanted.difference(used)
        sizes, times = self.costs["bytes"], self.costs["ticks"][len(core.ids) :]
        return _Choice(
            tuple(reversed(used)), sum(sizes[k] for k in used), sum(times[k] for k in again)
        )

    def near(self, caps: Caps) -> _Choice:
        """A good choice within the bytes of `caps`: the best on the lower hull of all choices.

        A choice on the hull has the least weighted sum of bytes and ticks for some weights. That is
        a minimum cut, which needs no search.
        """
        room = caps.get("bytes", math.inf)
        fewest, _ = self.minimum({"bytes": 1}, {}, UNLIMITED)
        fast, _ = self.minimum({"ticks": 1}, {}, UNLIMITED)
        if fewest is None or fast is None:
            raise RuntimeError("HiGHS did not solve a linear program")
        if fewest.bytes > room:
            raise Infeasible
        while fast.bytes > room:
            weights: Weights = {
                "bytes": fewest.ticks - fast.ticks,
                "ticks": fast.bytes - fewest.bytes,
            }
            choice, _ = self.minimum(weights, {}, UNLIMITED)
            if choice is None or choice.weighed(weights) >= fewest.weighed(weights):
                return fewest
            if choice.bytes > room:
                fast = choice
            else:
                fewest = choice
        return fast


def _in_digits(costs: list[int], cap: int, carry: int) -> list[tuple[dict[int, float], int]]:
    """Rows, each with a limit, that keep the sum of the chosen costs within `cap`.

    HiGHS ignores a millionth, in a variable as in a row, so a row must not hold numbers near a
    million. Larger ones are split into digits, each with a row of its own. The excess of a digit's
    sum over its limit is carried to the next: the variables from `carry` on.
    """
    rows: list[tuple[dict[int, float], int]] = []
    carried: dict[int, float] = {}
    while cap >= _BASE:
        digits = {k: float(c % _BASE) for k, c in enumerate(costs) if c % _BASE}
        rows.append((digits | carried | {carry: -float(_BASE)}, cap % _BASE))
        costs, cap = [c // _BASE for c in costs], cap // _BASE
        carried, carry = {carry: 1.0}, carry + 1
    rows.append(({k: float(c) for k, c in enumerate(costs) if c} | carried, cap))
    return rows
