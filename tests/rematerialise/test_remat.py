"""What is kept of a Llama 3.1 8B layer and computed again, next to what was recorded of the peers.

Everything is read from HLO: nothing is compiled and nothing runs.
"""

import itertools

import pytest
import torch

import xfunc as xf
from benchmarks import remat
from examples.llama import model
from examples.llama.plan import Plan
from xfunc import checkpoint_policies as cp
from xfunc.remat import min_cut

JAX, TORCH = remat.recorded("jax"), remat.recorded("torch")
BUDGETS = sorted({p.bytes for p in (*JAX.values(), *TORCH.values())}, reverse=True)
TICK = 1e-4  # The solver counts time in steps of about a millionth of the forward pass.


@pytest.fixture(scope="module")
def found():
    return remat.ours(BUDGETS)


@pytest.mark.parametrize("name", remat.POLICIES)
def test_jax_under_the_same_policy(found, name):
    assert found[name].is_as_good_as(JAX[name])


def test_jax_without_a_checkpoint(found):
    assert found["everything_saveable"].is_as_good_as(JAX["no checkpoint"])


@pytest.mark.parametrize("setting", TORCH)
def test_torch(found, setting):
    assert remat.match(found, TORCH[setting]) is not None


def test_min_cut_without_a_budget(found):
    own, dots = found["min_cut()"], JAX["dots_saveable"]
    assert own.matmul_flops == 0
    assert own.is_as_good_as(dots)
    assert own.flops < dots.flops
    assert own.bytes < TORCH["min_cut, aggressive"].bytes < TORCH["min_cut"].bytes


def test_a_budget_holds_and_less_of_it_never_keeps_more(found):
    points = [found[f"min_cut({b})"] for b in BUDGETS]
    for b, p in zip(BUDGETS, points, strict=True):
        assert p.bytes <= b
    for more, less in itertools.pairwise(points):
        assert less.bytes <= more.bytes
        assert less.seconds >= more.seconds - TICK


@pytest.mark.parametrize("name", [n for n in remat.POLICIES if "offload" not in n])
def test_a_budget_takes_no_longer_than_a_policy_of_as_many_bytes(found, name):
    policy = found[name]
    own = remat.measured(remat.joint(), cp.min_cut(policy.bytes))
    assert own.bytes <= policy.bytes
    assert own.seconds <= policy.seconds + TICK


def test_what_is_kept_is_planned_once(monkeypatch):
    config = model.PUBLISHED["llama3.1-405b"]
    tokens = xf.ShapeDtypeStruct((1, 4097), torch.int64)
    solved = []
    fastest = min_cut.fastest
    monkeypatch.setattr(
        min_cut, "fastest", lambda *a, **k: solved.append(len(a[0].nodes)) or fastest(*a, **k)
    )

    def lower(budget):
        def block(x, w, rope):
            attended = model.attend(x, w, rope, None, config, Plan(attention="dense"))
            return x + attended + model.mlp(x, w), None

        def loss(params, tokens):
            x = torch.nn.functional.embedding(tokens, params["embed"])
            rope = model.rotary(torch.arange(x.shape[1], device=x.device), config)
            step = lambda x, w: block(x, w, rope)  # noqa: E731
            x, _ = xf.scan(step, x, params["layers"], checkpoint_policy=cp.min_cut(budget))
            return x.float().sum()

        return xf.jit(xf.grad(loss)).lower(model.shapes(config), tokens)

    first = lower(2**39)
    assert len(solved) == 1  # for 126 layers
    assert solved[0] > 50
    assert lower(2**39).module.to_bytes() == first.module.to_bytes()
    assert len(solved) == 1
    lower(2**40)
    assert len(solved) == 2
