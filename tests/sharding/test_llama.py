"""The Llama example on 8 devices: weights, text, the step that `aot` lowers, and attention."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import config, model, train
from examples.llama.aot import Case
from examples.llama.hub import hf
from examples.llama.model import generate, kernels
from examples.llama.model.attention import blockwise, dense
from examples.llama.model.plan import Plan
from examples.llama.model.ring import ring
from examples.llama.model.sizes import Experts, Latent
from examples.llama.parallel.sharding import Sharding
from examples.llama.train import fit, steps

CONFIG = model.TINY["tiny"]
FAMILIES = {  # with every trait of layers, and every form of tensors in files
    name: dataclasses.replace(CONFIG, family=name, **more)
    for name, more in {
        "llama": {},
        "gemma3_text": {"window": 5, "full_layers": (1,), "local_theta": 100.0, "score_cap": 0.8},
        "granite": {"embed_scale": 3.0, "residual_scale": 0.3, "logit_scale": 2.0},
        "olmo3": {"window": 5, "full_layers": (0,)},
        "smollm3": {"window": 5, "nope_layers": (1,)},
        "phi3": {"rotary_size": 6},
        "ernie4_5": {"qkv_bias": True, "out_bias": True, "mlp_bias": True},
        "arcee": {"activation": "relu2", "mlp_bias": True},
        "gpt_oss": {"intermediate": 12, "experts": Experts(4, 2, 12, limit=0.7)},
        "deepseek_v3": {
            "dense_layers": (0,),
            "experts": Experts(4, 2, 12, shared=12),
            "latent": Latent(16, 24, rotary=4, plain=8, values=8),
            "kv_heads": 4,
        },
    }.items()
}


@pytest.fixture(params=[{"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 2, "tensor": 4}], ids=str)
def sharding(request: pytest.FixtureRequest) -> Sharding:
    return Sharding.of(request.param)


def random_params(config: model.Config = CONFIG) -> model.Params:
    generator = torch.Generator().manual_seed(0)
    return xf.tree.map(
        lambda a: 0.3 * torch.randn(a.shape, generator=generator), model.shapes(config)
    )


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(CONFIG.vocab, shape, generator=torch.Generator().manual_seed(1))


def assert_equal(actual: Any, expected: Any) -> None:
    xf.tree.map(lambda a, e: torch.testing.assert_close(a, e, rtol=0, atol=0), actual, expected)


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_oss", "deepseek_v3"])
def test_llama_load_and_save_sharded_weights(
    sharding: Sharding, family: str, tmp_path: Path
) -> None:
    config = FAMILIES[family]
    params = random_params(config)
    hf.save(tmp_path / "one", config, params)
    places = sharding.params(model.weights(config))
    _, loaded = hf.load(tmp_path / "one", shardings=places)
    xf.tree.map(lambda x, place: assert_lies(x, place.spec, sharding), loaded, places)
    assert_equal(xf.device_get(loaded), params)
    hf.save(tmp_path / "two", config, loaded, max_shard_size=20_000)
    assert_equal(hf.load(tmp_path / "two")[1], params)


@pytest.mark.sample(9, seed=0)
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_of_families_equal_one_device(sharding: Sharding, family: str) -> None:
    config, params = FAMILIES[family], random_params(FAMILIES[family])
    batch = model.batch_of(tokens(4, 13))

    def run(params: Any, batch: model.Batch, plan: Plan) -> Any:
        loss = functools.partial(model.loss, config=config, plan=plan)
        return xf.device_get(xf.jit(xf.value_and_grad(loss))(params, batch))

    expected = run(params, batch, Plan(block=4))
    there = xf.device_put(params, sharding.params(model.weights(config)))
    put = xf.device_put(batch, sharding.on_mesh(xf.P()))
    found = run(there, put, Plan(block=4, sharding=sharding))
    xf.tree.map(
        lambda a, b: torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5), found, expected
    )


def assert_lies(x: torch.Tensor, spec: xf.P, sharding: Sharding) -> None:
    found = xf.sharding.sharding_of(x)
    assert found is not None
    assert found.mesh == sharding.mesh
    assert found.tiles(x.ndim) == sharding.on_mesh(spec).tiles(x.ndim)


@pytest.mark.parametrize("batch", [4, 1])
def test_llama_generate_equals_one_device(sharding: Sharding, batch: int) -> None:
    """A batch, or heads of keys, that the mesh does not divide are whole on each device."""
    params, prompt = random_params(), tokens(batch, 9)
    text = prompt
    with xf.disable_jit():
        for _ in range(6):
            logits = model.forward(params, text, CONFIG)[:, -1]
            text = torch.cat([text, logits.argmax(-1)[:, None]], 1)
    put = xf.device_put(params, sharding.params(model.weights(CONFIG)))
    settings: dict[str, Any] = {"config": CONFIG, "new": 6, "plan": Plan(sharding=sharding)}
    found = generate.generate(put, prompt, **settings)
    assert xf.device_get(found).tolist() == text[:, 9:].tolist()


def test_llama_cache_is_sharded() -> None:
    sharding = Sharding.of({"data": 2, "fsdp": 2, "tensor": 2})
    plan = Plan(sharding=sharding)

    @xf.jit
    def run(params: model.Params, prompt: torch.Tensor) -> generate.Cache:
        cache = generate.empty(CONFIG, 4, 16, torch.float32, plan)
        first = torch.zeros(4, dtype=torch.int64)
        where = torch.tensor(0)
        return generate.advance(params, cache, prompt, where, first, CONFIG, plan)[1]["layers"]

    put = xf.device_put(random_params(), sharding.params(model.weights(CONFIG)))
    for x in run(put, tokens(4, 9)):
        assert x.shape == (2, 4, 2, 16, 8)
        assert_lies(x, xf.P(None, ("fsdp", "data"), "tensor"), sharding)


SETTINGS = {
    "mixed": "train.precision=mixed train.optimizer=adafactor train.plan.microbatches=2",
    "bfloat16": "train.precision=bfloat16 train.plan.policy=offload on_bad=ignore",
    "stochastic": "train.precision=stochastic mesh.fsdp=2 mesh.data=2 train.optimizer=adafactor",
}


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("parts", [1, 2])
def test_llama_gradients_are_sharded_like_weights(parts: int) -> None:
    """Those of the embedding and the output matrix too, which are used outside of the scan."""
    sharding = Sharding.of({"fsdp": 2, "tensor": 4})
    plan = Plan(sharding=sharding, microbatches=parts)
    recipe = train.Recipe(CONFIG, steps=2, plan=plan, precision="float32")
    places = sharding.params(model.weights(CONFIG))
    batch = xf.device_put(model.Batch(tokens(8, 16), tokens(8, 16)), sharding.on_mesh(xf.P("fsdp")))
    gradient = xf.jit(lambda params, batch: train.gradient(params, batch, recipe).grads)
    grads = gradient(xf.device_put(random_params(), places), batch)
    xf.tree.map(lambda g, place: assert_lies(g, place.spec, sharding), grads, places)


class Seen(Exception):
    """The step was reached."""


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", SETTINGS)
def test_llama_aot_lowers_the_step_of_fit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 300, encoding="utf-8")
    pairs = (
        f"folder={tmp_path / 'run'} data.files={text} data.vocab=300 train.model=tiny "
        "train.model.vocab=304 data.batch=16 data.seq=32 mesh.tensor=2 train.steps=2 "
        f"train.warmup=1 train.plan.block=16 {SETTINGS[name]}"
    )
    run = config.read(pairs=pairs.split())
    seen = []

    def step(state: train.State, batch: train.Batch, base: None, *, recipe: train.Recipe) -> None:
        seen.append(lower(state, batch, base, recipe=recipe).as_text())
        raise Seen("enough")

    lower = train.train_step.lower
    monkeypatch.setattr(steps, "train_step", step)
    with pytest.raises(Seen, match="enough"):
        fit.fit(run)
    monkeypatch.undo()
    assert Case(run, "v6e:2x4").lower().as_text() == seen[0]
    assert "sharding={devices=[" in seen[0]


DOCUMENTS = torch.tensor([[1] * 50 + [2] * 78, [1] * 128, [1] * 100 + [0] * 28, [1, 2] * 64])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "segments"),
    [
        ({"data": 2, "fsdp": 2, "tensor": 2}, DOCUMENTS),
        ({"fsdp": 2, "tensor": 4}, None),
        ({"tensor": 8}, DOCUMENTS),
    ],
    ids=["documents", "devices_share_heads", "heads_are_whole"],
)
def test_splash_attention_equals_dense_attention(
    axes: dict[str, int], segments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "PLATFORM", "cpu")
    sharding = Sharding.of(axes)
    generator = torch.Generator().manual_seed(0)
    qkv = [torch.randn(4, n, 128, 16, generator=generator) for n in (4, 2, 2)]
    weights = torch.randn(4, 4, 128, 16, generator=generator)

    def gradients(attention: Any) -> Any:
        value = xf.value_and_grad(lambda qkv: (attention(*qkv) * weights).sum())
        return xf.device_get(value(qkv))

    got = gradients(lambda q, k, v: kernels.splash_attention(q, k, v, segments, sharding=sharding))
    want = gradients(lambda q, k, v: dense(q, k, v, segments))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("heads", [(4, 2), (6, 2), (12, 6)], ids=str)
@pytest.mark.parametrize("axes", [{"tensor": 8}, {"context": 2, "tensor": 4}], ids=str)
def test_attention_in_blocks_equals_dense_attention(
    axes: dict[str, int], heads: tuple[int, int]
) -> None:
    """Heads of queries that the mesh does not divide are whole on each device."""
    sharding = Sharding.of(axes)
    plan = Plan(sharding=sharding)
    generator = torch.Generator().manual_seed(0)
    many, few = heads
    qkv = [torch.randn(2, n, 16, 4, generator=generator) for n in (many, few, few)]
    weights = torch.randn(2, many, 16, 4, generator=generator)

    def blocks(*qkv: torch.Tensor) -> torch.Tensor:
        function = ring if "context" in axes else blockwise
        q, k, v = (plan.as_divided(x.transpose(1, 2)).transpose(1, 2) for x in qkv)
        mixed = function(q, k, v, block=4, sharding=sharding)
        return plan.in_order(mixed.transpose(1, 2)).transpose(1, 2)

    def gradients(attend: Any) -> Any:
        value = xf.value_and_grad(lambda qkv: (attend(*qkv) * weights).sum())
        return xf.device_get(xf.jit(value)(qkv))

    torch.testing.assert_close(gradients(blocks), gradients(dense), rtol=1e-4, atol=1e-4)
