"""Rows of which each device has a part, against the same on one device."""

import dataclasses
import functools
import math
import re
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.config import Mesh, SettingError
from examples.llama.model.plan import Plan
from examples.llama.model.sizes import Experts
from examples.llama.parallel.sharding import Sharding

CONFIG = model.Config(64, hidden=16, intermediate=24, layers=2, heads=4, kv_heads=2)
OTHERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "windows and capped scores": {
        "family": "gemma2", "window": 7, "full_layers": (1,), "score_cap": 5.0,
        "activation": "gelu_pytorch_tanh",
    },
    "experts": {"family": "qwen3_moe", "experts": Experts(4, 2, intermediate=12)},
}  # fmt: skip


def batch(rows: int) -> model.Batch:
    """Documents that begin and end in different parts of rows, and padding."""
    generator = torch.Generator().manual_seed(1)
    windows = torch.randint(64, (rows, 33), generator=generator)
    ends = torch.rand(rows, 32, generator=generator) < 0.1
    segments = 1 + ends.cumsum(1)
    segments[-1, 27:] = 0
    given = model.batch_of(windows)._replace(segments=segments)
    return given._replace(targets=given.targets.masked_fill(segments == 0, model.IGNORE))


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("family", OTHERS)
@pytest.mark.parametrize(
    "axes",
    [
        {"context": 4, "fsdp": 2},
        {"context": 2, "tensor": 4},
        {"context": 2, "expert": 2, "data": 2},
        {"context": 8},
    ],
    ids=str,
)
def test_parts_of_rows_equal_one_device(axes: dict[str, int], family: str) -> None:
    sizes = dataclasses.replace(CONFIG, **OTHERS[family])
    params, given = xf.device_get(model.init(sizes)), batch(4)

    def run(params: Any, given: model.Batch, plan: Plan) -> Any:
        loss = functools.partial(model.loss, config=sizes, plan=plan)
        return xf.device_get(xf.jit(xf.value_and_grad(loss))(params, given))

    alone = run(params, given, Plan(attention="dense"))
    sharding = Sharding.of(axes)
    put = xf.device_put(params, sharding.params(model.weights(sizes)))
    there = xf.device_put(given, sharding.on_mesh(sharding.batch))
    plan = Plan("attention", block=4, loss_chunk=3, sharding=sharding)
    found = run(put, there, plan)
    xf.tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=3e-5, atol=3e-6), found, alone)
    logits = functools.partial(model.forward, config=sizes)
    want = xf.jit(logits)(params, given.tokens, segments=given.segments)
    got = xf.jit(functools.partial(logits, plan=plan))(put, there.tokens, segments=there.segments)
    torch.testing.assert_close(xf.device_get(got), xf.device_get(want), rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("axes", [{"context": 8}, {"context": 4, "fsdp": 2}], ids=str)
def test_parts_of_rows_are_all_that_a_device_has(axes: dict[str, int]) -> None:
    """No device holds the features of a whole row, nor scores of more than a block."""
    sharding = Sharding.of(axes, abstract=True)
    plan = Plan(block=4, loss_chunk=64, sharding=sharding)
    recipe = train.Recipe(CONFIG, 10, plan, warmup=1)
    given = train.abstract_state(recipe), train.abstract_batch(recipe, 2, 1024)
    text = train.train_step.lower(*given, recipe=recipe).compile().as_text()
    assert text is not None
    sizes = {tuple(map(int, m.split(","))) for m in re.findall(r"f32\[([\d,]+)\]", text)}
    assert any(1024 // axes["context"] in dims for dims in sizes)
    assert not [d for d in sizes if 1024 in d and math.prod(d) > 1024 * CONFIG.head_dim]


def test_order_gives_each_device_the_front_and_the_back() -> None:
    plan, row = Plan(sharding=Sharding.of({"context": 2}, abstract=True)), torch.arange(8)[None]
    divided = plan.as_divided(row)
    assert divided[0].tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert torch.equal(plan.in_order(divided), row)
    assert Plan(sharding=Sharding.of({}, abstract=True)).as_divided(row[:, :7]).shape == (1, 7)
    with pytest.raises(ValueError, match=r"rows of 6 tokens.* make data\.seq a multiple of 4"):
        plan.as_divided(row[:, :6])


def test_context_setting_needs_blockwise_attention() -> None:
    run = config.read(pairs=["mesh.context=4", "train.plan.attention=dense"])
    with pytest.raises(SettingError, match=r"attention is dense, and mesh\.context is 4"):
        run.recipe(8)
    assert Mesh(context=4).axes(8) == {"data": 1, "fsdp": 2, "tensor": 1, "expert": 1, "context": 4}
