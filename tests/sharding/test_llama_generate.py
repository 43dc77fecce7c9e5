"""Weights of the Llama example from files to a mesh and back, and text from them there."""

from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import generate, hf, model, slots
from examples.llama.engine import Engine, Job
from examples.llama.plan import Plan
from examples.llama.sharding import Sharding

CONFIG = model.TINY["tiny"]


@pytest.fixture(params=[{"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 2, "tensor": 4}], ids=str)
def sharding(request: pytest.FixtureRequest) -> Sharding:
    return Sharding.of(request.param)


def random_params() -> model.Params:
    generator = torch.Generator().manual_seed(0)
    return xf.tree.map(
        lambda a: 0.3 * torch.randn(a.shape, generator=generator), model.shapes(CONFIG)
    )


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(CONFIG.vocab, shape, generator=torch.Generator().manual_seed(1))


def assert_equal(actual: Any, expected: Any) -> None:
    xf.tree.map(lambda a, e: torch.testing.assert_close(a, e, rtol=0, atol=0), actual, expected)


def test_from_files_and_back(sharding: Sharding, tmp_path: Path) -> None:
    params = random_params()
    hf.save(tmp_path / "one", CONFIG, params)
    places = sharding.params(model.weights(CONFIG))
    _, loaded = hf.load(tmp_path / "one", shardings=places)
    xf.tree.map(lambda x, place: assert_lies(x, place.spec, sharding), loaded, places)
    assert_equal(xf.device_get(loaded), params)
    hf.save(tmp_path / "two", CONFIG, loaded, max_shard_size=20_000)
    assert_equal(hf.load(tmp_path / "two")[1], params)


def assert_lies(x: torch.Tensor, spec: xf.P, sharding: Sharding) -> None:
    found = xf.sharding.sharding_of(x)
    assert found is not None
    assert found.mesh == sharding.mesh
    assert found.tiles(x.ndim) == sharding.on_mesh(spec).tiles(x.ndim)


@pytest.mark.parametrize("batch", [4, 1])
def test_same_tokens(sharding: Sharding, batch: int) -> None:
    """A batch, or heads of keys, that the mesh does not divide are whole on each device."""
    params, prompt = random_params(), tokens(batch, 9)
    text = prompt
    with xf.disable_jit():
        for _ in range(6):
            logits = model.forward(params, text, CONFIG)[:, -1]
            text = torch.cat([text, logits.argmax(-1)[:, None]], 1)
    put = xf.device_put(params, sharding.params(model.weights(CONFIG)))
    settings: dict[str, Any] = {"config": CONFIG, "new": 6, "plan": Plan(sharding=sharding)}
    found = generate.generate(put, prompt, xf.random.key(0), **settings)
    assert xf.device_get(found).tolist() == text[:, 9:].tolist()


def test_the_cache_is_divided() -> None:
    sharding = Sharding.of({"data": 2, "fsdp": 2, "tensor": 2})
    plan = Plan(sharding=sharding)

    @xf.jit
    def run(params: model.Params, prompt: torch.Tensor) -> generate.Cache:
        cache = generate.empty(CONFIG, 4, 16, torch.float32, plan)
        first = torch.zeros(4, dtype=torch.int64)
        where = torch.tensor(0)
        return generate.advance(params, cache, prompt, where, first, CONFIG, plan)[1]

    put = xf.device_put(random_params(), sharding.params(model.weights(CONFIG)))
    for x in run(put, tokens(4, 9)):
        assert x.shape == (2, 4, 2, 16, 8)
        assert_lies(x, xf.P(None, ("fsdp", "data"), "tensor"), sharding)


def test_texts_in_slots(sharding: Sharding) -> None:
    """As many texts as the mesh divides, and prompts that it does not; nothing compiled anew."""
    params, texts = (
        random_params(),
        [row[: 3 + 4 * i].tolist() for i, row in enumerate(tokens(5, 20))],
    )
    put = xf.device_put(params, sharding.params(model.weights(CONFIG)))
    plan = Plan(sharding=sharding)
    engine = Engine(put, CONFIG, size=4, length=24, plan=plan, pieces=[8])
    engine.warm_up()
    before = slots.advance.cache_info()
    jobs = [Job(text, 5) for text in texts]
    engine.submit(*jobs)
    engine.finish()
    assert slots.advance.cache_info().compiles == before.compiles
    for x in engine._state.cache:
        assert_lies(x, sharding.fitting(x, xf.P(None, *sharding.heads)), sharding)
    with xf.disable_jit():
        for job in jobs:
            for i, token in enumerate(job.made):
                text = torch.tensor([[*job.prompt, *(t.number for t in job.made[:i])]])
                assert token.number == model.forward(params, text, CONFIG)[0, -1].argmax()
