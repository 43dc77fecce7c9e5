"""Models with experts on 8 devices, against the same on one."""

import dataclasses
import functools
import re
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import generate, model, quantised, train
from examples.llama.plan import Plan
from examples.llama.sharding import Sharding
from examples.llama.sizes import Experts

CONFIG = model.Config(
    64,
    hidden=16,
    intermediate=8,
    layers=2,
    heads=4,
    kv_heads=2,
    family="qwen2_moe",
    qkv_bias=True,
    experts=Experts(8, 3, intermediate=12, shared=8),
)
ROUTERS = model.Routers(balance=0.3, size=0.1)


def batch() -> model.Batch:
    """With padding at the end of some rows."""
    windows = torch.randint(64, (8, 13), generator=torch.Generator().manual_seed(1))
    segments = 1 + (torch.arange(12) > 6).long().repeat(8, 1)
    segments[3:, 10:] = 0
    return model.batch_of(windows)._replace(segments=segments)


def run(params: Any, given: model.Batch, plan: Plan) -> Any:
    loss = functools.partial(model.loss, config=CONFIG, plan=plan, routers=ROUTERS)
    return xf.device_get(xf.jit(xf.value_and_grad(loss))(params, given))


@functools.cache
def on_one_device() -> Any:
    return run(xf.device_get(model.init(CONFIG)), batch(), Plan(attention="dense", block=4))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "axes",
    [{"expert": 4, "tensor": 2}, {"expert": 2, "fsdp": 2, "data": 2}],
    ids=str,
)
def test_same_loss_and_gradients(axes: dict[str, int]) -> None:
    sharding = Sharding.of(axes)
    places = sharding.params(model.weights(CONFIG))
    params = xf.device_put(xf.device_get(model.init(CONFIG)), places)
    given = xf.device_put(batch(), sharding.on_mesh(sharding.batch))
    found = run(params, given, Plan(attention="dense", block=4, sharding=sharding))
    xf.tree.map(
        lambda a, b: torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6), found, on_one_device()
    )
    parts = axes.get("expert", 1)
    assert places["layers"]["e_up"].shard_shape((2, 8, 12, 16))[1] == 8 // parts


@pytest.mark.parametrize(
    ("form", "features", "parts"), [("int8", 6, 2), ("nf4", 64, 1), ("nf4", 128, 2)]
)
def test_experts_in_codes(form: Any, features: int, parts: int) -> None:
    """They are divided like plain ones, but no block of NF4 is. Against one device, which computes
    with what the codes stand for.
    """
    pytest.importorskip("bitsandbytes")
    sizes = dataclasses.replace(CONFIG, hidden=64, experts=Experts(4, 3, intermediate=features))
    sharding = Sharding.of({"expert": 2, "tensor": 2, "fsdp": 2})
    given, params = batch(), xf.device_get(model.init(sizes))
    plan = Plan("everything", attention="dense", block=4)

    def loss(embed: Any, params: Any, batch: model.Batch, plan: Plan) -> Any:
        params = params | {"embed": embed}
        return model.loss(params, batch, sizes, plan, routers=ROUTERS)

    def run(params: Any, batch: model.Batch, plan: Plan) -> Any:
        step = xf.jit(xf.value_and_grad(functools.partial(loss, plan=plan)))
        return step(params["embed"], params, batch)

    names = "e_gate", "e_up", "e_down"
    codes = {name: quantised.FORMS[form](params["layers"][name]) for name in names}
    plain = {name: each.plain() for name, each in codes.items()}
    for name in names:
        assert 0 < (plain[name] - params["layers"][name]).abs().max() < 0.2
    alone = run(params | {"layers": params["layers"] | plain}, given, plan)

    described = model.shapes(sizes, torch.float32)
    places = xf.tree.map(
        lambda a, p: xf.ShapeDtypeStruct(a.shape, a.dtype, p),
        described,
        sharding.params(model.weights(sizes)),
    )
    layers = places["layers"] | {n: quantised.abstract(places["layers"][n], form) for n in names}
    where = xf.tree.map(lambda a: a.sharding, places | {"layers": layers})
    put = xf.device_put(params | {"layers": params["layers"] | codes}, where)
    down = put["layers"]["e_down"]
    place = xf.sharding_of(down.codes)
    assert place is not None
    assert place.shard_shape(down.codes.shape)[1] == 2
    plan = dataclasses.replace(plan, sharding=sharding)
    divided = run(put, xf.device_put(given, sharding.on_mesh(sharding.batch)), plan)
    xf.tree.map(
        lambda a, b: torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6),
        *map(xf.device_get, (divided, alone)),
    )


@pytest.mark.parametrize("policy", ["full", "everything"])
def test_what_a_policy_keeps(policy: str) -> None:
    config = dataclasses.replace(CONFIG, layers=7)
    sharding = Sharding.of({"expert": 4, "fsdp": 2}, abstract=True)
    plan = Plan(policy, attention="dense", block=4, sharding=sharding)
    recipe = train.Recipe(config, 10, plan, warmup=1)
    given = train.abstract_state(recipe), train.abstract_batch(recipe, 8, 12)
    lines = train.train_step.lower(*given, recipe=recipe).as_text().splitlines()
    loops = [line.partition(" while(")[0] for line in lines if " while(" in line]
    # On each of 8 devices, in each layer: 48 tokens of 3 choices each, in blocks of 4.
    kept = [line for line in loops if re.search(r"\[7,8,148,", line)]
    assert bool(kept) == (policy == "everything")


def test_same_tokens() -> None:
    """Two rows, which the mesh does not divide."""
    sharding = Sharding.of({"expert": 4, "tensor": 2})
    params, prompt = xf.device_get(model.init(CONFIG, 3)), batch().tokens[:2]
    put = xf.device_put(params, sharding.params(model.weights(CONFIG)))
    found = [
        generate.generate(p, prompt, xf.random.key(0), config=CONFIG, new=5, plan=plan)
        for p, plan in ((params, Plan()), (put, Plan(sharding=sharding)))
    ]
    one, divided = (xf.device_get(x).tolist() for x in found)
    assert one == divided
