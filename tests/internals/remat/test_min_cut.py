"""Plans of `min_cut` are made once for the steps of a scan, and found again."""

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.model.plan import Plan
from xfunc import checkpoint_policies as cp
from xfunc.remat import min_cut

pytestmark = pytest.mark.quick


def test_min_cut_of_scan_is_planned_once(monkeypatch):
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
