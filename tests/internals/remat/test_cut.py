"""The cut (which values to keep): against brute force, its promises, and when the solver fails."""

import dataclasses
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.internals.remat.cut_brute_force import (
    frontier,
    frontier_of_subsets,
    random_problem,
    working_bytes,
)
from xfunc.remat import cut, cut_core
from xfunc.remat.cut import CutProblem, InfeasibleBudget, Node, NoPlan, Plan

SEEDS = range(200)
ODD = (
    3,
    999_999_937,
    7_776_543_211,
    7_776_543_217,
    10_000_000_019,
)  # bytes without a common factor


def cost(plan: Plan) -> tuple[int, float]:
    return plan.bytes, plan.seconds


def budgets_for(costs: list[tuple[int, float]]) -> list[int]:
    """At, just above and just below some of the points where the answer changes."""
    sizes = sorted({size for size, _ in costs})
    some = {*sizes[:: max(1, len(sizes) // 3)], sizes[-1]}
    return sorted({b + d for b in some for d in (-1, 0, 1) if b + d >= sizes[0]})


def best(costs: list[tuple[int, float]], budget: int) -> tuple[int, float]:
    return min((c for c in costs if c[0] <= budget), key=lambda c: (c[1], c[0]))


# -- exactness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_frontier_equals_frontier_of_subsets(seed):
    problem = random_problem(seed, most=10)
    assert frontier(problem) == frontier_of_subsets(problem)


@pytest.mark.quick(5, seed=0)
@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("first", range(0, len(SEEDS), 20))
def test_fastest_and_least_equal_brute_force(first, capfd):
    for seed in SEEDS[first : first + 20]:
        problem = random_problem(seed)
        costs = frontier(problem)
        assert cost(cut.least(problem)) == costs[0], seed
        for budget in budgets_for(costs):
            plan = cut.fastest(problem, budget)
            assert plan.exact
            assert cost(plan) == best(costs, budget), (seed, budget)
        with pytest.raises(InfeasibleBudget, match=f"the fewest are {costs[0][0]}$") as error:
            cut.fastest(problem, costs[0][0] - 1)
        assert error.value.minimum_bytes == costs[0][0]
        without_heavy = frontier(problem, heavy=False)
        if without_heavy:
            assert cost(cut.fewest_bytes(problem)) == without_heavy[0], seed
    assert capfd.readouterr() == ("", "")  # HiGHS is silent.


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_fastest_with_odd_sizes_equals_brute_force(first):
    for seed in range(first, first + 20):
        problem = random_problem(seed, sizes=ODD)
        costs = frontier(problem)
        for budget in budgets_for(costs):
            plan = cut.fastest(problem, budget)
            assert plan.exact
            assert cost(plan) == best(costs, budget), (seed, budget)


def test_fastest_with_large_budget_recomputes_nothing():
    problem = random_problem(3)
    assert cut.fastest(problem, 10**18).seconds == 0


def test_cut_infeasible_problem_names_node():
    nodes = (
        Node(0, 8, 0.0, (), available=True),
        Node(1, 8, 1.0, (0,), keepable=False, recomputable=False),
        Node(2, 4, 0.0, (1,)),
        Node(3, 0, 1.0, (2,), keepable=False),
    )
    assert cut.least(CutProblem(nodes, (3,))) == Plan((2,), 4, 1.0)
    for ask in (cut.least, cut.fewest_bytes, lambda p: cut.fastest(p, 100)):
        with pytest.raises(NoPlan, match="node 1 is needed; it can be neither kept nor computed"):
            ask(CutProblem(nodes, (1,)))


def test_fewest_bytes_recomputes_needed_heavy_tuples():
    nodes = (
        Node(0, 8, 0.0, (), available=True),
        Node(1, 8, 5.0, (0,), keepable=False, heavy=True),
        Node(2, 4, 0.0, (1,)),
        Node(3, 4, 7.0, (2,), heavy=True),
    )
    assert cut.fewest_bytes(CutProblem(nodes, (1, 3))) == Plan((3,), 4, 5.0)
    assert cut.fewest_bytes(CutProblem(nodes, (3,))) == Plan((3,), 4, 0.0)


# -- promises -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_fastest_is_monotone_in_budget(first):
    for seed in range(first, first + 20):
        problem = random_problem(seed)
        costs = frontier(problem)
        everything_again = working_bytes(problem)
        low, high = costs[0][0], costs[-1][0]
        before = None
        for k in range(9, -1, -1):
            plan = cut.fastest(problem, low + (high - low) * k // 9)
            working = working_bytes(problem, plan.kept)
            assert working <= everything_again
            if before is not None:
                assert plan.bytes <= before.bytes
                assert plan.seconds >= before.seconds
                assert plan.bytes + everything_again <= before.bytes + everything_again
            before = plan


def test_fastest_peak_may_rise_with_smaller_budget():
    nodes = (Node(0, 1, 0.0, (), available=True), Node(1, 1000, 1.0, (0,)), Node(2, 10, 1.0, (1,)))
    problem = CutProblem(nodes, (2,))
    costs = {}
    for budget in (10, 0):
        plan = cut.fastest(problem, budget)
        costs[budget] = plan.bytes + working_bytes(problem, plan.kept)
    assert costs == {10: 10, 0: 1010}  # At 0 there is only one plan.


def test_working_bytes_counts_held_values():
    nodes = (
        Node(0, 1, 0.0, (), available=True),
        Node(1, 10, 1.0, (0,)),
        Node(2, 20, 1.0, (1,)),
        Node(3, 40, 1.0, (2,)),
        Node(4, 5, 1.0, (3,)),
    )
    problem = CutProblem(nodes, (1, 4))
    assert working_bytes(problem) == 10 + 20 + 40
    assert working_bytes(problem, (2,)) == 10 + 40 + 5
    assert working_bytes(problem, (1, 4)) == 0


@pytest.mark.slow
def test_fastest_is_deterministic_across_processes():
    script = """
import sys
from tests.internals.remat.cut_brute_force import random_problem
from xfunc.remat import cut
assert "scipy" not in sys.modules  # before it is needed
print([cut.fastest(random_problem(seed), 20) for seed in range(12)])
"""
    other = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert other.stdout.strip() == str([cut.fastest(random_problem(k), 20) for k in range(12)])


# -- the core -------------------------------------------------------------------------------------


def test_reduce_chain_to_its_end():
    nodes = [Node(0, 8, 0.0, (), available=True)]
    nodes += [Node(k, 8, float(k % 3), (k - 1,)) for k in range(1, 300)]
    core = cut_core.reduce(CutProblem(tuple(nodes), (299,)), None)
    assert len(core.ids) == 1
    assert core.operands == ((),)


def test_reduce_decided_problem_is_empty():
    nodes = (
        Node(0, 8, 0.0, (), available=True),
        Node(1, 8, 3.0, (0,), recomputable=False),
        Node(2, 8, 0.0, (1,)),
        Node(3, 0, 9.0, (2,)),
        Node(4, 16, 1.0, (2, 3), keepable=False),
    )
    problem = CutProblem(nodes, (2, 3, 4))
    assert cut_core.reduce(problem, None).ids == ()
    assert cut.least(problem) == Plan((1, 3), 8, 1.0)


# -- when the solver fails ------------------------------------------------------------------------


def of_layers(count: int) -> CutProblem:
    """Layers that are all alike, the hardest kind: many plans are nearly the best."""
    nodes = [Node(0, 64, 1.0, (), recomputable=False)]
    for _ in range(count):
        k = len(nodes)
        nodes += [
            Node(k, 64, 50.0, (k - 1,)),
            Node(k + 1, 96, 7.0, (k,)),
            Node(k + 2, 33, 3.0, (k, k + 1)),
            Node(k + 3, 64, 20.0, (k + 1, k + 2)),
        ]
    return CutProblem(tuple(nodes), tuple(n.id for n in nodes[1:] if n.id % 4 != 3))


def test_fastest_with_node_limit_gives_good_plan():
    problem = of_layers(12)
    budget = cut.fastest(problem, 10**9).bytes // 3
    good, best = cut.fastest(problem, budget, node_limit=0), cut.fastest(problem, budget)
    assert good.bytes <= budget
    assert best.seconds <= good.seconds <= 1.25 * best.seconds


def with_answer(monkeypatch, replace):
    """Let HiGHS answer what `replace` makes of its answer, if there is a budget."""
    import scipy.optimize

    honest = scipy.optimize.milp

    def milp(c, *, constraints, **kwargs):
        found = honest(c, constraints=constraints, **kwargs)
        budgeted = any(low == -float("inf") for low in constraints.lb)
        return replace(found) if budgeted else found

    monkeypatch.setattr(scipy.optimize, "milp", milp)


@pytest.mark.parametrize(
    "replace",
    [
        lambda found: SimpleNamespace(x=None, status=1),
        lambda found: SimpleNamespace(x=0 * found.x, status=0),  # lacks what is needed
        lambda found: SimpleNamespace(x=0 * found.x + 1, status=0),  # exceeds the budget
    ],
    ids=["none", "too little", "too much"],
)
def test_fastest_replaces_invalid_solver_answer(monkeypatch, replace):
    problem = of_layers(6)
    most, least = cut.fastest(problem, 10**9).bytes, cut.least(problem)
    with_answer(monkeypatch, replace)
    for budget in range(200, most, 97):
        plan = cut.fastest(problem, budget)
        assert not plan.exact
        assert plan.bytes <= budget
        assert plan.seconds <= least.seconds
    with pytest.raises(InfeasibleBudget, match=f"the fewest are {least.bytes}$"):
        cut.fastest(problem, least.bytes - 1)


def test_least_without_solver_answer_raises(monkeypatch):
    import scipy.optimize

    monkeypatch.setattr(scipy.optimize, "milp", lambda *a, **k: SimpleNamespace(x=None, status=4))
    with pytest.raises(RuntimeError, match="HiGHS did not solve a linear program"):
        cut.least(of_layers(2))


# -- verification ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes": 5}, "does not keep 5 bytes"),
        ({"seconds": 1.5}, r"does not add 1\.5 seconds"),
        ({"kept": (1, 2)}, "node 1 is kept for nothing"),
        ({"kept": (0, 2)}, "node 0 may not be kept"),
        ({"kept": ()}, "node 2 is needed; it can be neither"),
    ],
)
def test_verify_refuses_wrong_plan(change, message):
    nodes = (
        Node(0, 8, 0.0, (), available=True),
        Node(1, 8, 3.0, (0,)),
        Node(2, 8, 0.0, (1,), recomputable=False),
    )
    problem, plan = CutProblem(nodes, (2,)), Plan((2,), 8, 0.0)
    cut.verify(problem, plan, 8)
    with pytest.raises(ValueError, match=message):
        cut.verify(problem, dataclasses.replace(plan, **change), 8)
    with pytest.raises(ValueError, match="keeps 8 bytes of 7"):
        cut.verify(problem, plan, 7)
