"""The engine of the Llama example on a mesh: where its cache lies, and what it generates."""

import pytest
import torch

import xfunc as xf
from examples.llama import model, slots
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


def assert_lies(x: torch.Tensor, spec: xf.P, sharding: Sharding) -> None:
    found = xf.sharding.sharding_of(x)
    assert found is not None
    assert found.mesh == sharding.mesh
    assert found.tiles(x.ndim) == sharding.on_mesh(spec).tiles(x.ndim)


@pytest.mark.sample(2, seed=0)
def test_engine_generates_in_sharded_slots(sharding: Sharding) -> None:
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
