"""The choice of values to keep for the backward pass, as a graph problem, and its solutions.

A `CutProblem` holds the forward values of a joint program. A value that the backward pass needs is
there already (`available`), is kept, or is recomputed; a recomputed value needs its operands in
turn. Keeping costs bytes, recomputing costs seconds, once per node. Three questions are answered,
each exactly:

==================  ==========================================================================
`least`             the fewest bytes
`fewest_bytes`      the fewest bytes without computing a matmul or a convolution twice
`fastest`           the fewest added seconds within a budget of bytes
==================  ==========================================================================

Of plans that are equally good in one measure, the best in the other is chosen.

NOTE [kept bytes never rise when the budget falls]: let P and Q be the answers of `fastest` for the
budgets p < q, and suppose that P kept more bytes than Q. Then Q fits p as well, so P adds no more
seconds than Q; P fits q, so Q adds no more than P. They add the same, and of two such plans the one
with fewer bytes is chosen for p: that is Q, not P. The seconds never fall, for a similar reason.
This requires an order among plans without rounding, so seconds are counted in whole ticks, about
2**20 for all the seconds of a problem; and it requires plans that are `exact`.

NOTE [guarantees about the peak]: no planner can give the true peak of the backward pass this
property. Let a large value be computed from an input, and a small one, which is needed, from the
large one. A budget that has no room for the small one brings the large one back. An upper bound
falls with the budget: the kept bytes, plus the most recomputed bytes that a plan without kept
values holds at once. The second term is the same for every budget; and no plan holds more for
recomputation, since that plan recomputes the same values and possibly more, in the same order, for
the same users and possibly more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from xfunc.remat import cut_solver
from xfunc.remat.cut_core import NoPlan as NoPlan
from xfunc.remat.cut_core import reduce


@dataclasses.dataclass(frozen=True)
class Node:
    """A forward value.

    Attributes:
        id: its name.
        bytes: the cost of keeping it.
        seconds: the cost of recomputing it from its operands.
        operands: ids of the nodes that it is computed from.
        available: whether the backward pass has it anyway, like an input.
        keepable: whether it may be kept; a tuple may not, only its elements.
        recomputable: whether it may be recomputed; random state, for example, may not.
        heavy: whether it contains a matmul or a convolution.
    """

    id: int
    bytes: int
    seconds: float
    operands: tuple[int, ...]
    available: bool = False
    keepable: bool = True
    recomputable: bool = True
    heavy: bool = False


@dataclasses.dataclass(frozen=True)
class CutProblem:
    """The values that can be kept, and the values that the backward pass needs.

    Attributes:
        nodes: forward values, operands before their users.
        needed: ids of those that the backward pass uses directly, in order of use; plans do not
            depend on the order.
    """

    nodes: tuple[Node, ...]
    needed: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """An answer.

    Attributes:
        kept: ids of the nodes to keep, in the order of the problem.
        bytes: their total size.
        seconds: the added time of recomputing the nodes that are not kept.
        exact: whether no plan is better by a whole tick; one may be if the search was cut short.
    """

    kept: tuple[int, ...]
    bytes: int
    seconds: float
    exact: bool = True


class InfeasibleBudget(Exception):
    """No plan keeps as few bytes as the budget allows.

    Attributes:
        budget_bytes: the requested budget.
        minimum_bytes: the fewest bytes that a plan can keep.
    """

    def __init__(self, budget_bytes: int, minimum_bytes: int):
        super().__init__(
            f"no plan keeps as few as {budget_bytes} bytes; the fewest are {minimum_bytes}"
        )
        self.budget_bytes = budget_bytes
        self.minimum_bytes = minimum_bytes


def least(problem: CutProblem) -> Plan:
    """The fewest bytes that can be kept; of such plans, one that adds the fewest seconds."""
    return _solved(problem, problem, by=("bytes", "ticks"))


def fewest_bytes(problem: CutProblem) -> Plan:
    """The fewest bytes without computing anything heavy twice; of such plans, the fastest.

    A heavy node that cannot be kept, such as a needed tuple, is recomputed nevertheless.
    """
    forced = _forced(problem)
    nodes = (
        dataclasses.replace(n, recomputable=False) if n.heavy and n.id not in forced else n
        for n in problem.nodes
    )
    return _solved(problem, dataclasses.replace(problem, nodes=tuple(nodes)), by=("bytes", "ticks"))


def fastest(
    problem: CutProblem,
    budget_bytes: int,
    *,
    node_limit: int = 200,
    time_limit: float = 10.0,
) -> Plan:
    """The fewest seconds added within a budget; of such plans, one that keeps the fewest bytes.

    Args:
        problem: the cut problem.
        budget_bytes: the bytes that the plan may keep.
        node_limit: how many branches are searched before a plan that is not known to be optimal is
            accepted. Not seconds, since all processes of a program must find the same plan.
        time_limit: for the search, in seconds: a last resort.

    Raises:
        InfeasibleBudget: if no plan fits the budget.
    """
    limits = cut_solver.Limits(node_limit, time_limit)
    try:
        return _solved(problem, problem, by=("ticks", "bytes"), budget=budget_bytes, limits=limits)
    except (NoPlan, cut_solver.Infeasible):
        raise InfeasibleBudget(budget_bytes, least(problem).bytes) from None


def recomputed(problem: CutProblem, kept: Collection[int]) -> tuple[int, ...]:
    """Ids of the nodes recomputed if `kept` is kept, in the order of the problem.

    Raises:
        NoPlan: if that requires a node that cannot be recomputed.
    """
    kept = frozenset(kept)
    wanted = set(problem.needed)
    found: list[int] = []
    for n in reversed(problem.nodes):  # Users come first.
        if n.id in wanted and n.id not in kept and not n.available:
            if not n.recomputable:
                raise NoPlan(n.id)
            found.append(n.id)
            wanted.update(n.operands)
    return tuple(reversed(found))


def verify(problem: CutProblem, plan: Plan, budget_bytes: int | None = None) -> None:
    """Check a plan against its problem, independently of how it was found.

    Raises:
        ValueError: if it keeps a node that may not be kept or is not used, recomputes one that may
            not be, exceeds the budget, or gives wrong bytes or seconds.
    """
    nodes = {n.id: n for n in problem.nodes}
    try:
        again = recomputed(problem, plan.kept)
    except NoPlan as e:
        raise ValueError(str(e)) from None
    used = {o for v in again for o in nodes[v].operands}.union(problem.needed)
    for v in plan.kept:
        if nodes[v].available or not nodes[v].keepable:
            raise ValueError(f"node {v} may not be kept")
        if v not in used:
            raise ValueError(f"node {v} is kept for nothing")
    if plan.bytes != sum(nodes[v].bytes for v in set(plan.kept)):
        raise ValueError(f"the plan does not keep {plan.bytes} bytes")
    if plan.seconds != math.fsum(nodes[v].seconds for v in again):
        raise ValueError(f"the plan does not add {plan.seconds} seconds")
    if budget_bytes is not None and plan.bytes > budget_bytes:
        raise ValueError(f"the plan keeps {plan.bytes} bytes of {budget_bytes}")


def _forced(problem: CutProblem) -> set[int]:
    """Ids of the nodes that every plan recomputes, because they are used and cannot be kept."""
    used = set(problem.needed)
    result: set[int] = set()
    for n in reversed(problem.nodes):
        if n.id in used and not n.keepable and not n.available:
            result.add(n.id)
            used.update(n.operands)
    return result


def _solved(
    problem: CutProblem,
    allowed: CutProblem,
    by: tuple[cut_solver.Measure, cut_solver.Measure],
    budget: int | None = None,
    limits: cut_solver.Limits = cut_solver.UNLIMITED,
) -> Plan:
    """The best plan for `allowed`, which is `problem` with fewer choices."""
    kept, exact = cut_solver.solve(reduce(allowed, budget), by, budget, limits)
    nodes = {n.id: n for n in problem.nodes}
    again = recomputed(allowed, kept)
    used = {o for v in again for o in nodes[v].operands}.union(problem.needed)
    order = tuple(n.id for n in problem.nodes if n.id in used and n.id in kept)
    plan = Plan(
        order,
        sum(nodes[v].bytes for v in order),
        math.fsum(nodes[v].seconds for v in again),
        exact,
    )
    verify(problem, plan, budget)
    return plan
