"""Models with experts on 8 devices, against the same on one."""

import dataclasses
import functools
import math
import re
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.model import experts, generate, kernels, quantised
from examples.llama.model.plan import Plan
from examples.llama.model.sizes import Experts, Latent
from examples.llama.parallel.sharding import Sharding
from examples.llama.tune import lora
from examples.llama.tune.lora import Tune

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
BIASED = dataclasses.replace(
    CONFIG, family="gpt_oss", window=5, experts=Experts(8, 3, intermediate=12, limit=0.7)
)
SIGMOID = dataclasses.replace(
    CONFIG,
    family="deepseek_v3",
    layers=3,
    kv_heads=4,
    experts=Experts(8, 3, 12, shared=8, groups=4, active_groups=2, scale=1.5),
    dense_layers=(0,),
    latent=Latent(8, 12, rotary=4, plain=2, values=4),
)
ROUTERS = model.Routers(balance=0.3, size=0.1)


def batch() -> model.Batch:
    """With padding at the end of some rows."""
    windows = torch.randint(64, (8, 13), generator=torch.Generator().manual_seed(1))
    segments = 1 + (torch.arange(12) > 6).long().repeat(8, 1)
    segments[3:, 10:] = 0
    return model.batch_of(windows)._replace(segments=segments)


def start(config: model.Config) -> Any:
    """Weights on the host; biases are not zero."""
    generator = torch.Generator().manual_seed(2)

    def noisy(p: torch.Tensor) -> torch.Tensor:
        return p + 0.1 * torch.randn(p.shape, generator=generator)

    return xf.tree.map(noisy, xf.device_get(model.init(config)))


def run(params: Any, given: model.Batch, plan: Plan, config: model.Config = CONFIG) -> Any:
    loss = functools.partial(model.loss, config=config, plan=plan, routers=ROUTERS)
    return xf.device_get(xf.jit(xf.value_and_grad(loss))(params, given))


@functools.cache
def on_one_device(config: model.Config = CONFIG) -> Any:
    return run(start(config), batch(), Plan(attention="dense", block=4), config)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("config", [CONFIG, BIASED, SIGMOID], ids=["shared", "biased", "sigmoid"])
@pytest.mark.parametrize(
    "axes",
    [{"expert": 4, "tensor": 2}, {"expert": 2, "fsdp": 2, "data": 2}],
    ids=str,
)
def test_experts_loss_and_gradients_equal_one_device(
    axes: dict[str, int], config: model.Config
) -> None:
    sharding = Sharding.of(axes)
    places = sharding.params(model.weights(config))
    params = xf.device_put(start(config), places)
    given = xf.device_put(batch(), sharding.on_mesh(sharding.batch))
    found = run(params, given, Plan(attention="dense", block=4, sharding=sharding), config)
    expected = on_one_device(config)
    xf.tree.map(
        lambda a, b: torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6), found, expected
    )
    parts = axes.get("expert", 1)
    assert places[config.stacks[-1].name]["e_up"].shard_shape((2, 8, 12, 16))[1] == 8 // parts


@pytest.mark.parametrize(
    ("axes", "config"), [({}, BIASED), ({"expert": 4, "tensor": 2}, CONFIG)], ids=str
)
def test_experts_by_kernel_equal_those_in_blocks(
    axes: dict[str, int], config: model.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX's kernel for TPUs, interpreted."""
    monkeypatch.setattr(kernels, "PLATFORM", "cpu")
    monkeypatch.setattr("examples.llama.model.plan.TILE", 4)
    plan, params, given = Plan(attention="dense", block=4, on_tpu=True), start(config), batch()
    if axes:
        sharding = Sharding.of(axes)
        plan = dataclasses.replace(plan, sharding=sharding)
        params = xf.device_put(params, sharding.params(model.weights(config)))
        given = xf.device_put(given, sharding.on_mesh(sharding.batch))
    found = run(params, given, plan, config)
    torch.testing.assert_close(found, on_one_device(config), rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize(
    ("axes", "sizes"),
    [
        ({"tensor": 4, "fsdp": 2}, {"vocab": 67}),
        ({"expert": 4, "tensor": 2}, {"experts": Experts(6, 3, intermediate=12)}),
        ({"expert": 8}, {"experts": Experts(5, 2, intermediate=7), "vocab": 67, "hidden": 24}),
    ],
    ids=["a vocabulary", "experts", "both, and features"],
)
def test_sizes_that_axes_do_not_divide_equal_one_device(
    axes: dict[str, int], sizes: dict[str, Any]
) -> None:
    """Weights are divided elsewhere."""
    config = dataclasses.replace(CONFIG, family="qwen3_moe", qkv_bias=False, **sizes)
    sharding, given = Sharding.of(axes), batch()
    params = xf.device_get(model.init(config))

    def run(params: Any, given: model.Batch, plan: Plan) -> Any:
        loss = functools.partial(model.loss, config=config, plan=plan, routers=ROUTERS)
        return xf.device_get(xf.jit(xf.value_and_grad(loss))(params, given))

    places = sharding.params(model.weights(config))
    there = xf.device_put(given, sharding.on_mesh(sharding.batch))
    plan = Plan(attention="dense", block=4, sharding=sharding)
    found = run(xf.device_put(params, places), there, plan)
    alone = run(params, given, Plan(attention="dense", block=4))
    xf.tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6), found, alone)
    shares = xf.tree.map(lambda a, p: math.prod(p.shard_shape(a.shape)), params, places)
    of_device = sum(xf.tree.leaves(shares))
    assert of_device <= 0.2 * sum(a.numel() for a in xf.tree.leaves(params))


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize(("features", "parts"), [(64, 1), (128, 2)])
def test_experts_quantised_equal_one_device(features: int, parts: int) -> None:
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
    codes = {name: quantised.nf4(params["layers"][name]) for name in names}
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
    layers = places["layers"] | {n: quantised.abstract(places["layers"][n], "nf4") for n in names}
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


@pytest.mark.slow
@pytest.mark.parametrize("form", [None, "nf4"])
@pytest.mark.parametrize(
    "axes",
    [{"expert": 4, "tensor": 2}, {"expert": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 8}],
    ids=str,
)
def test_experts_adapters_equal_one_device(axes: dict[str, int], form: Any) -> None:
    """Loss and gradients. The optimizer's state for adapters is divided as the experts are."""
    if form == "nf4":
        pytest.importorskip("bitsandbytes")
    sizes = Experts(4, 3, intermediate=128, shared=64)
    sizes = dataclasses.replace(CONFIG, hidden=64, experts=sizes)
    tune = Tune(("layers.e_*", "layers.router", "layers.wq"), ("norm",), 3)
    tune = dataclasses.replace(tune, base=form)
    sharding = Sharding.of(axes)
    divided = Plan("everything", attention="dense", block=4, sharding=sharding)
    plans, found = (dataclasses.replace(divided, sharding=None), divided), []
    every = xf.device_get(model.init(sizes))
    forms = lora.forms(sizes, tune)
    base = lora.frozen(xf.tree.map(quantised.made, every, forms), sizes, tune)

    def drawn(name: str, weight: Any) -> Any:
        """With second matrices that are not zero."""
        like, draw = lora.abstract(tune)(name, weight), torch.Generator().manual_seed(len(name))
        return xf.tree.map(lambda a: torch.randn(a.shape, generator=draw) * 0.1, like)

    described = xf.tree.map(lambda a: xf.ShapeDtypeStruct(a.shape, a.dtype), every)
    params = lora.trained(described, sizes, tune, drawn) | {"norm": every["norm"]}
    for plan in plans:
        recipe = train.Recipe(sizes, 10, plan, tune=tune, warmup=0, router_balance=0.3)
        state, frozen, given = train.start(recipe, params), base, batch()
        if plan.sharding is not None:
            places: Any = train.shardings(recipe), train.abstract_base(recipe)
            where = places[0], xf.tree.map(lambda a: a.sharding, places[1])
            state, frozen = xf.device_put(xf.device_get((state, frozen)), where)
            given = xf.device_put(given, sharding.on_mesh(sharding.batch))
            down, up = state.opt[0].mu["layers"]["e_down"]
            parts = axes.get("expert", 1), axes.get("fsdp", 1), axes.get("tensor", 1)
            assert [_shard(a) for a in (down, up)] == [
                (2, 4 // parts[0], 3, 128 // parts[2]),
                (2, 4 // parts[0], 64 // parts[1], 3),
            ]
        step = xf.jit(functools.partial(train.gradient, recipe=recipe))
        found.append(xf.device_get(step(state.params, given, base=frozen)[:2]))
    assert all(leaf.abs().max() > 1e-4 for leaf in xf.tree.leaves(found[0]))
    xf.tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6), *found)


def _shard(leaf: Any) -> tuple[int, ...]:
    where = xf.sharding_of(leaf)
    assert where is not None
    return tuple(where.shard_shape(leaf.shape))


@pytest.mark.parametrize("policy", ["full", "everything"])
def test_experts_kept_by_checkpoint_policy(policy: str) -> None:
    config = dataclasses.replace(CONFIG, layers=7)
    sharding = Sharding.of({"expert": 4, "fsdp": 2}, abstract=True)
    plan = Plan(policy, attention="dense", block=4, sharding=sharding)
    recipe = train.Recipe(config, 10, plan, warmup=1)
    given = train.abstract_state(recipe), train.abstract_batch(recipe, 8, 12)
    lines = train.train_step.lower(*given, recipe=recipe).as_text().splitlines()
    loops = [line.partition(" while(")[0] for line in lines if " while(" in line]
    # On each of 8 devices, in each layer: 12 tokens of 3 choices each, of which each of 4 devices
    # is sent 14, which make 16 blocks of 4.
    kept = [line for line in loops if re.search(r"\[7,8,(4,14|56|64),", line)]
    assert bool(kept) == (policy == "everything")


@pytest.mark.parametrize(
    ("axes", "room"), [({"expert": 8}, 1.5), ({"expert": 2, "data": 4}, 0.1)], ids=str
)
def test_experts_chosen_by_all_tokens_drop_none(
    axes: dict[str, int], room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices send the tokens in several rounds: 2 of 7 rows, or 18 of 2."""
    monkeypatch.setattr(experts, "ROOM", room)
    params = xf.device_get(model.init(CONFIG))
    layers = params["layers"] | {"router": torch.zeros_like(params["layers"]["router"])}
    params = params | {"layers": layers}  # Of equal logits, each token takes the first three.
    sharding, given = Sharding.of(axes), batch()
    put = xf.device_put(params, sharding.params(model.weights(CONFIG)))
    there = xf.device_put(given, sharding.on_mesh(sharding.batch))
    found = run(put, there, Plan(attention="dense", block=4, sharding=sharding))
    alone = run(params, given, Plan(attention="dense", block=4))
    xf.tree.map(lambda a, b: torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6), found, alone)


@pytest.mark.parametrize("config", [CONFIG, SIGMOID], ids=["shared", "sigmoid"])
def test_experts_generate_equals_one_device(config: model.Config) -> None:
    """Two rows, which the mesh does not divide."""
    sharding = Sharding.of({"expert": 4, "tensor": 2})
    params, prompt = xf.device_get(model.init(config, 3)), batch().tokens[:2]
    put = xf.device_put(params, sharding.params(model.weights(config)))
    found = [
        generate.generate(p, prompt, config=config, new=5, plan=plan)
        for p, plan in ((params, Plan()), (put, Plan(sharding=sharding)))
    ]
    one, divided = (xf.device_get(x).tolist() for x in found)
    assert one == divided
