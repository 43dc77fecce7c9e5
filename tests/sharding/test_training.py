"""The small Llama, trained on 8 devices in several ways, against plain torch on one device."""

import dataclasses
import functools
import itertools
from pathlib import Path

import pytest
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.hub import hf
from examples.llama.model.plan import Plan
from examples.llama.parallel.sharding import AXES, Sharding
from examples.llama.tune import base_weights, lora

CONFIG = model.Config.tiny(vocab=64)
RECIPE = train.Recipe(CONFIG, steps=50, warmup=10, plan=Plan(block=16, loss_chunk=16))
WAYS = {
    "data": (8, 1, 1),
    "fsdp": (1, 8, 1),
    "tensor": (1, 1, 8),
    "fsdp x tensor": (1, 4, 2),
    "all three": (2, 2, 2),
}


def batches():
    """Each token follows from the one before it."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(RECIPE.steps):
        tokens = [torch.randint(0, 64, (8,), generator=generator)]
        for _ in range(32):
            tokens.append((5 * tokens[-1] + 3) % 64)
        yield model.batch_of(torch.stack(tokens, 1))


@functools.cache
def on_one_device():
    """Losses of plain torch, with its own AdamW."""
    params = xf.tree.map(lambda p: p.requires_grad_(), xf.device_get(model.init(CONFIG)))
    leaves = xf.tree.leaves(params)
    norms = [leaf for path, leaf in xf.tree.leaves_with_path(params) if "norm" in path]
    matrices = [leaf for path, leaf in xf.tree.leaves_with_path(params) if "norm" not in path]
    theirs = torch.optim.AdamW(
        [{"params": norms, "weight_decay": 0.0}, {"params": matrices}],
        lr=1.0,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=RECIPE.weight_decay,
    )
    losses = []
    with xf.disable_jit():
        for k, batch in enumerate(batches()):
            loss = model.loss(params, batch, CONFIG, Plan(attention="dense"))
            theirs.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(leaves, RECIPE.clip)
            for group in theirs.param_groups:
                group["lr"] = RECIPE.rate(torch.tensor(k)).item()
            theirs.step()
            losses.append(loss.item())
    return losses


@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("way", WAYS)
def test_training_50_steps_equals_torch(way):
    sharding = Sharding.of(dict(zip(AXES, WAYS[way], strict=False)))
    parts = 2 if way == "fsdp x tensor" else 1  # 4 rows a part, for 4 devices
    plan = dataclasses.replace(RECIPE.plan, sharding=sharding, microbatches=parts)
    recipe = dataclasses.replace(RECIPE, plan=plan)
    shardings = train.shardings(recipe)
    state = xf.jit(lambda: train.init(recipe), out_shardings=shardings)()
    assert xf.tree.map(xf.sharding_of, state) == shardings
    compiles = train.train_step.cache_info().compiles
    losses = []
    for batch in batches():
        batch = xf.device_put(batch, sharding.on_mesh(sharding.batch))
        state, metrics = train.train_step(state, batch, recipe=recipe)
        losses.append(metrics.loss)
    got = torch.stack([x.cpu() for x in losses])
    expected = torch.tensor(on_one_device())
    assert expected[-1] < 0.5 * expected[0]
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=0)
    assert train.train_step.cache_info().compiles == compiles + 1
    for x, s in zip(xf.tree.leaves(state), xf.tree.leaves(shardings), strict=True):
        found = xf.sharding_of(x)
        assert found is not None
        assert found.tiles(x.ndim) == s.tiles(x.ndim)


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize("precision", ["float32", "stochastic"])
@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_training_optimizers_equal_one_device(name, precision):
    recipe = dataclasses.replace(
        RECIPE, optimizer=name, schedule="constant", peak_lr=1e-2, precision=precision
    )
    sharding = Sharding.of({"fsdp": 2, "tensor": 4})
    divided = dataclasses.replace(recipe, plan=dataclasses.replace(recipe.plan, sharding=sharding))
    found = []
    for one in (recipe, divided):
        state, losses = train.init(one), []
        if one is divided:
            state = xf.device_put(state, train.shardings(one))
        for _, batch in zip(range(5), batches(), strict=False):
            state, metrics = train.train_step(state, batch, recipe=one)
            losses.append(metrics.loss.cpu())
        found.append(torch.stack(losses))
    # Sums of bfloat16 numbers, which Muon has too, depend on the order.
    rtol = 1e-5 if (name, precision) == ("adafactor", "float32") else 2e-3
    torch.testing.assert_close(*found, rtol=rtol, atol=0)


@pytest.mark.slow
def test_training_adapters_on_quantised_base(tmp_path: Path) -> None:
    """From files on, with a part of its blocks on each device."""
    sizes = model.Config(64, 256, 192, layers=2, heads=4, kv_heads=2)
    hf.save(tmp_path / "hub", sizes, xf.device_get(model.init(sizes)))
    found = {}
    for axes in ({"fsdp": 8}, {"fsdp": 2, "tensor": 2, "data": 2}, {"data": 8}):
        sharding = Sharding.of(axes)
        tune = lora.Tune(("layers.w*",), base="nf4")
        plan = Plan(block=16, loss_chunk=16, sharding=sharding)
        recipe = train.Recipe(sizes, steps=20, warmup=2, plan=plan, tune=tune)
        _, every = base_weights.read(tmp_path / "hub", recipe)
        kept = base_weights.frozen(every, recipe)
        xf.tree.map(lambda a, x: assert_lies(x, a.sharding), train.abstract_base(recipe), kept)
        adapt = lora.adapters(sizes, tune, xf.random.key(0))
        state = train.start(recipe, lora.trained(every, sizes, tune, adapt))
        losses = []
        for batch in itertools.islice(batches(), 20):
            state, metrics = train.train_step(state, batch, kept, recipe=recipe)
            losses.append(metrics.loss.item())
        assert losses[-1] < losses[0]
        found[tuple(axes)] = losses
    first, *others = found.values()
    for losses in others:
        assert losses == pytest.approx(first, abs=1e-4)


def assert_lies(x: torch.Tensor, where: xf.NamedSharding) -> None:
    found = xf.sharding.sharding_of(x)
    assert found is not None
    assert found.tiles(x.ndim) == where.tiles(x.ndim)
