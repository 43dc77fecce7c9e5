"""Values kept and recomputed of a Llama 3.1 8B layer, next to records of JAX and torch.

Everything is read from HLO: nothing is compiled and nothing runs.
"""

import itertools

import pytest

from benchmarks import remat
from xfunc import checkpoint_policies as cp

JAX, TORCH = remat.recorded("jax"), remat.recorded("torch")
BUDGETS = sorted({p.bytes for p in (*JAX.values(), *TORCH.values())}, reverse=True)
TICK = 1e-4  # The solver counts time in steps of about a millionth of the forward pass.


@pytest.fixture(scope="module")
def found():
    return remat.ours(BUDGETS)


@pytest.mark.sample(2, seed=0)
@pytest.mark.quick(4, seed=0)
@pytest.mark.parametrize("name", remat.POLICIES)
def test_checkpoint_policy_as_good_as_jax(found, name):
    assert found[name].is_as_good_as(JAX[name])


def test_everything_saveable_as_good_as_jax_no_checkpoint(found):
    assert found["everything_saveable"].is_as_good_as(JAX["no checkpoint"])


@pytest.mark.parametrize("setting", TORCH)
def test_checkpoint_policy_as_good_as_torch(found, setting):
    assert remat.match(found, TORCH[setting]) is not None


def test_min_cut_without_budget_beats_dots_saveable(found):
    own, dots = found["min_cut()"], JAX["dots_saveable"]
    assert own.matmul_flops == 0
    assert own.is_as_good_as(dots)
    assert own.flops < dots.flops
    assert own.bytes < TORCH["min_cut, aggressive"].bytes < TORCH["min_cut"].bytes


def test_min_cut_budget_holds_and_is_monotone(found):
    points = [found[f"min_cut({b})"] for b in BUDGETS]
    for b, p in zip(BUDGETS, points, strict=True):
        assert p.bytes <= b
    for more, less in itertools.pairwise(points):
        assert less.bytes <= more.bytes
        assert less.seconds >= more.seconds - TICK


@pytest.mark.parametrize("name", [n for n in remat.POLICIES if "offload" not in n])
def test_min_cut_budget_no_slower_than_policy(found, name):
    policy = found[name]
    own = remat.measured(remat.joint(), cp.min_cut(policy.bytes))
    assert own.bytes <= policy.bytes
    assert own.seconds <= policy.seconds + TICK
