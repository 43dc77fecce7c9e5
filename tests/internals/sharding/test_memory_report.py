"""memory_report per chip, against what the compiler needs on each of 8 devices."""

from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.model.plan import Plan
from examples.llama.parallel.sharding import AXES, Sharding
from xfunc import checkpoint_policies as cp
from xfunc.core import ambient

CONFIG = model.Config(512, hidden=128, intermediate=352, layers=4, heads=8, kv_heads=4)
POLICIES = {"everything": cp.everything_saveable, "nothing": cp.nothing_saveable}


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", [(1, 4, 2), (1, 8, 1), (8, 1, 1)], ids=str)
def test_memory_report_peak_per_chip_is_near_compilers(shape, policy):
    where = Sharding.of(dict(zip(AXES, shape, strict=False)))
    shardings = where.params(model.weights(CONFIG)), where.on_mesh(where.batch)
    plan = Plan(policy="everything", attention="dense", sharding=where)

    def loss(params, batch):
        return model.loss(params, batch, CONFIG, plan)

    params = xf.tree.map(
        lambda a, s: xf.ShapeDtypeStruct(a.shape, a.dtype, s),
        model.shapes(CONFIG, torch.float32),
        shardings[0],
    )
    tokens: Any = xf.ShapeDtypeStruct((16, 128), torch.int64, shardings[1])
    batch = model.Batch(tokens, tokens)
    row = xf.memory_report(loss, params, batch, policies=POLICIES).rows[
        1 + [*POLICIES].index(policy)
    ]
    with ambient.overridden(ambient.Override(POLICIES[policy])):
        step = xf.jit(xf.value_and_grad(loss), in_shardings=shardings)
        memory = step.lower(params, batch).compile().memory_analysis()
    assert row.policy == policy
    assert row.peak_per_chip is not None
    assert row.peak_per_chip.arguments == pytest.approx(memory.argument_size_in_bytes, rel=0.01)
    assert row.peak_bytes_per_chip == pytest.approx(memory.peak_memory_in_bytes, rel=0.33)
