"""Peaks over all sizes against the analysis of each."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf
from xfunc.hlo.estimate.liveness import peak
from xfunc.symbolic.peak_bound import SymbolicPeak, prepared, upper
from xfunc.symbolic.polynomial import Polynomial
from xfunc.symbolic.shape_domain import Range, ShapeDomain
from xfunc.symbolic.symbolic_int import Basis, Facts, Tracked

B, S = Polynomial.symbol("B"), Polynomial.symbol("S")
BOX = ShapeDomain({"B": Range(1, 16), "S": Range(2, 512)})
W: Any = xf.ShapeDtypeStruct((3, 16, 16), torch.float32)


def struct(*shape: int) -> Any:
    return xf.ShapeDtypeStruct(shape, torch.float32)


def attention(h: Any, w: Any) -> Any:
    q = torch.tanh(h @ w)
    return h + torch.softmax(q @ q.transpose(-1, -2) / 4, -1) @ h, None


def loss(ws: Any, x: Any, policy: Any = None) -> Any:
    return xf.scan(attention, x, ws, checkpoint_policy=policy)[0].sum()


def unrolled(ws: Any, x: Any) -> Any:
    for w in ws:
        x = attention(x, w)[0]
    return F.pad(x[:, 1:], (0, 0, 0, 3)).square().mean()


def step(ws: Any, x: Any) -> Any:
    value, grads = xf.value_and_grad(unrolled)(ws, x)
    return ws - 0.1 * grads, value


def lean(ws: Any, x: Any) -> Any:
    return xf.grad(lambda ws: loss(ws, x, xf.checkpoint_policies.nothing_saveable))(ws)


def branches(ws: Any, x: Any) -> Any:
    """Results of other sizes than the arguments, and memory that a branch needs for itself."""
    y = xf.cond(x.sum() > 0, lambda x: (x @ x.transpose(-1, -2)) @ x, torch.tanh, x)
    return y[:, :-1], torch.cat([x, y], 1), y.sum(0) @ ws[0]


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("f", [xf.grad(loss), step, lean, branches])
@pytest.mark.parametrize("donated", [(), (0,)])
def test_symbolic_peak_equals_peak_of_each_size(f: Any, donated: tuple[int, ...]) -> None:
    def module(env: Any) -> Any:
        return xf.jit(f).lower(W, struct(env["B"], env["S"], 16)).module

    found = SymbolicPeak(prepared(module, BOX), donated)
    draw = random.Random(0)
    sizes = [(1, 2), (16, 512), (1, 512), (16, 2), (8, 16), (16, 16)]  # the last look like others
    sizes += [(draw.randint(1, 16), draw.randint(2, 512)) for _ in range(6)]
    for b, s in sizes:
        env = {"B": b, "S": s}
        assert found.at(env) == peak(module(env), donated).bytes


def test_upper_drops_dominated_polynomials() -> None:
    sizes = [4 * B * S, 4 * B * S - 1, B * S * S, 900 * S, S + 7]
    basis = Basis(sizes)
    kept = upper([basis.terms(p) for p in sizes], basis, BOX)
    # 4*B*S is below 900*S, since B is 16 at most, and B*S*S is more than that from S = 900/B on.
    assert {basis.polynomial(t) for t in kept} == {B * S * S, 900 * S}


def test_tracked_comparisons_are_noted() -> None:
    basis, facts = Basis([B * S]), Facts()
    x = Tracked.of(12, basis.terms(B * S), facts)
    y = Tracked.of(7, basis.terms(B * S - 5), facts)
    outcomes = [x > 11, x < 13, y < x, x + y == 19, 20 - x == 8, -x < 0, x >= 12, x <= 12]
    assert outcomes == [True] * 8
    assert [x > 12, x < y, y > x, x >= 13, x <= y, x == y] == [False] * 6
    assert max(x, y, 3) is x
    assert sorted([x, 4, y]) == [4, 7, 12]
    assert facts.negative[basis.terms(11 - B * S)]
    assert not facts.negative[basis.terms(12 - B * S)]
    assert facts.zero[basis.terms(2 * B * S - 24)]
