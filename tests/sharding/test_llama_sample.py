"""Texts that the Llama example makes on a mesh."""

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.model import generate
from examples.llama.model.plan import Plan
from examples.llama.model.sampling import Sampling, Settings
from examples.llama.parallel.sharding import Sharding

CONFIG = model.TINY["tiny"]


@pytest.fixture(params=[{"data": 2, "fsdp": 2, "tensor": 2}, {"fsdp": 2, "tensor": 4}], ids=str)
def sharding(request: pytest.FixtureRequest) -> Sharding:
    return Sharding.of(request.param)


@pytest.mark.sample(2, seed=0)
def test_sample_on_a_mesh_equals_one_device(sharding: Sharding) -> None:
    """As many texts as the mesh does not divide, greedy and drawn."""
    draw = torch.Generator().manual_seed(0)
    params = xf.tree.map(lambda a: 0.3 * torch.randn(a.shape, generator=draw), model.shapes(CONFIG))
    texts = torch.randint(CONFIG.vocab, (5, 20), generator=draw)
    tokens, lengths = generate.pad([row[: 3 + 4 * i].tolist() for i, row in enumerate(texts)], 20)
    sampling = Sampling.of([Settings(temperature=float(i % 2), seed=i) for i in range(5)])

    def made(params: model.Params, plan: Plan) -> torch.Tensor:
        given = params, tokens, sampling
        return generate.generate(*given, lengths=lengths, config=CONFIG, new=5, plan=plan)

    put = xf.device_put(params, sharding.params(model.weights(CONFIG)))
    found = made(put, Plan(sharding=sharding))
    assert xf.device_get(found).tolist() == xf.device_get(made(params, Plan())).tolist()
