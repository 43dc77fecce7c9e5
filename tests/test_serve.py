"""Exported programs in processes that cannot import torch_xla."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import generate, model
from examples.llama.plan import Plan
from tests.support.fresh import Server
from xfunc import P

S = xf.ShapeDtypeStruct
MESH = xf.AbstractMesh((4, 2), ("data", "tensor"))

WITHOUT_TORCH_XLA = """if True:
    import json, sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("torch_xla", "_XLAC"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Refuse())
    import torch, xfunc as xf

    folder = sys.argv[1]
    inputs = torch.load(f"{folder}/inputs")
    loaded = {name: xf.export.load(f"{folder}/{name}") for name in inputs}
    facts = {}
"""

CALLS = """
    results = {n: [xf.device_get(loaded[n](*args)) for args in inputs[n]] for n in inputs}
    torch.save(results, f"{folder}/results")
"""

REFUSALS = """
    def message(call):
        try:
            call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    x, f = torch.ones(3), xf.jit(lambda x: x + 1)
    facts["jit"] = message(lambda: f(x))
    facts["grad"] = message(lambda: xf.grad(torch.sum)(x))
    facts["vmap"] = message(lambda: xf.vmap(torch.sin)(x))
    facts["lower"] = message(lambda: f.lower(x))
    facts["make_hlo"] = message(lambda: xf.make_hlo(lambda x: x)(x))
    facts["shapes"] = message(lambda: xf.eval_shape(lambda x: x, x))
    facts["inside"] = message(lambda: xf.jit(loaded["gradient"])(*inputs["gradient"][0]))
    facts["random"] = message(lambda: xf.random.normal(xf.random.key(0), (2,)))
    backend = message(lambda: xf.config.set_backend("torch_xla"))
    facts["chosen"] = [backend, xf.devices()]
    facts["eager"] = xf.device_put(x).add(1).tolist()
"""

SHARDED = """
    f = loaded["sharded"]
    (x, w), = inputs["sharded"]
    facts["expects"] = [str(a.sharding.spec) for a in f.in_info[0]]
    mesh = xf.make_mesh((4, 2), ("data", "tensor"))
    facts["same"] = f.in_info[0][0].sharding == xf.NamedSharding(mesh, xf.P("data"))
    out, total = f(x, w)
    facts["results"] = [str(xf.sharding_of(t).spec) for t in (out, total)]
    try:
        f(xf.device_put(out, xf.NamedSharding(mesh, xf.P(None, "tensor"))), w)
    except xf.errors.ShardingError as error:
        facts["otherwise"] = str(error)
    facts["again"] = bool(torch.isfinite(f(out, w)[1]))
    try:
        out + 1
    except RuntimeError as error:
        facts["donated"] = str(error)
"""

END = """
    facts["loaded"] = [n for n in sys.modules if n.partition(".")[0] == "torch_xla"]
    print(json.dumps(facts))
"""


def gradient(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    def loss(w: torch.Tensor) -> torch.Tensor:
        last, _ = xf.scan(lambda h, _: (torch.tanh(h @ w), None), x, length=3)
        return (torch.linalg.cholesky(last.T @ last + torch.eye(4)) ** 2).sum()

    return xf.value_and_grad(loss)(w)


def by_torch(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`gradient` without xfunc."""
    w = w.clone().requires_grad_()
    last = x
    for _ in range(3):
        last = torch.tanh(last @ w)
    loss = (torch.linalg.cholesky(last.T @ last + torch.eye(4)) ** 2).sum()
    return loss.detach(), torch.autograd.grad(loss, w)[0]


def ragged(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"mean": torch.softmax(x @ w, 0).mean(1), "shifted": x[1:] - x[:-1], "sum": x.sum()}


def sharded(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.relu(x @ w) @ w.T
    return out, out.square().sum()


def sampled(params: model.Params, prompt: torch.Tensor) -> torch.Tensor:
    """What the Llama example says next."""
    key = torch.tensor([0, 7], dtype=torch.int32)
    return generate.generate(params, prompt, key, config=CONFIG, new=4)


def step(
    params: model.Params,
    cache: tuple[torch.Tensor, torch.Tensor],
    token: torch.Tensor,
    at: torch.Tensor,
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """One token of a server: the cache is written in place."""
    before, first = generate.Cache(*cache), torch.zeros_like(token)
    logits, after = generate.advance(params, before, token[:, None], at, first, CONFIG, Plan())
    return tuple(after), logits.argmax(-1)


CONFIG = model.TINY["tiny-scaled"]


def weights() -> model.Params:
    generator = torch.Generator().manual_seed(0)
    shapes = model.shapes(CONFIG)
    return xf.tree.map(lambda s: 0.3 * torch.randn(s.shape, generator=generator), shapes)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def equal(got: Any, want: Any) -> None:
    for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(want), strict=True):
        torch.testing.assert_close(g, w.cpu(), rtol=1e-5, atol=1e-5)


def serve(fresh: Server, folder: Path, code: str, devices: int) -> tuple[Any, dict[str, Any]]:
    """The results of all calls and the facts in a process without torch_xla."""
    env = {"CPU_NUM_DEVICES": str(devices), "XFUNC_BACKEND": ""}
    done = fresh.run(WITHOUT_TORCH_XLA + CALLS + code + END, folder, env=env)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "results"), json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


def test_on_one_device(fresh: Server, folder: Path) -> None:
    params, prompt = weights(), torch.arange(12).reshape(2, 6)
    cache, token = tuple(generate.empty(CONFIG, 2, 8, torch.float32, Plan())), prompt[:, 0]
    n = xf.Dim("n", max=9)
    inputs: dict[str, list[tuple[Any, ...]]] = {
        "gradient": [(normal(5, 4), normal(4, 4))],
        "range": [(normal(n, 4), normal(4, 3)) for n in (1, 2, 3, 8, 9)],
        "sampled": [(params, prompt)],
        "step": [(params, cache, token, torch.tensor(3))],
    }
    xf.export.save(xf.jit(gradient).lower(*inputs["gradient"][0]), folder / "gradient")
    xf.export.save(
        xf.jit(ragged).lower(S((n, 4), torch.float32), S((4, 3), torch.float32)), folder / "range"
    )
    xf.export.save(xf.jit(sampled).lower(params, prompt), folder / "sampled")
    donating = xf.jit(step, donate_argnums=1)
    xf.export.save(donating.lower(*inputs["step"][0]), folder / "step")
    torch.save(inputs, folder / "inputs")
    results, facts = serve(fresh, folder, REFUSALS, 1)
    assert facts.pop("loaded") == []
    assert facts.pop("eager") == [2.0, 2.0, 2.0]
    refusal, devices = facts.pop("chosen")
    assert refusal.startswith("ImportError: the backend 'torch_xla' needs torch_xla, which is not")
    assert devices == [0], "The backend in use stays."
    for message in facts.values():
        assert message.startswith("ImportError: tracing a function needs torch_xla, which is not")
        assert "Hint: " in message
    equal(results["gradient"][0], by_torch(*inputs["gradient"][0]))
    for got, args in zip(results["range"], inputs["range"], strict=True):
        equal(got, ragged(*args))
    with xf.disable_jit():
        tokens = prompt
        for _ in range(4):
            last = model.forward(params, tokens, CONFIG)[:, -1]
            tokens = torch.cat([tokens, last.argmax(-1)[:, None]], 1)
        equal(results["step"][0], step(*inputs["step"][0]))
    assert results["sampled"][0].tolist() == tokens[:, 6:].tolist()


def test_on_eight_devices(fresh: Server, folder: Path) -> None:
    n = xf.Dim("n", max=16, multiple_of=4)
    rows, columns = xf.NamedSharding(MESH, P("data")), xf.NamedSharding(MESH, P(None, "tensor"))
    settings: dict[str, Any] = {"in_shardings": (rows, columns), "donate_argnums": 0}
    avals = S((8, 4), torch.float32), S((4, 6), torch.float32)
    inputs = {
        "sharded": [(normal(8, 4), normal(4, 6))],
        "range": [(normal(n, 4), normal(4, 6)) for n in (4, 8, 12)],
    }
    jitted = xf.jit(sharded, out_shardings=(rows, None), **settings)
    xf.export.save(jitted.lower(*avals), folder / "sharded")
    jitted = xf.jit(sharded, **settings)
    xf.export.save(jitted.lower(S((n, 4), torch.float32), avals[1]), folder / "range")
    torch.save(inputs, folder / "inputs")
    results, facts = serve(fresh, folder, SHARDED, 8)
    for name in inputs:
        for got, args in zip(results[name], inputs[name], strict=True):
            equal(got, sharded(*args))
    assert facts["expects"] == ["P('data')", "P(None, 'tensor')"]
    assert facts["same"]
    assert facts["results"] == ["P('data')", "P()"]
    assert "was donated to a jitted function" in facts["donated"]
    assert "takes argument 0 sharded as NamedSharding" in facts["otherwise"]
    assert facts["again"]
    assert facts["loaded"] == []


def test_a_program_for_a_mesh_needs_its_devices(tmp_path: Path) -> None:
    rows = xf.NamedSharding(MESH, P("data"))
    file = tmp_path / "program"
    xf.export.save(xf.jit(torch.sin, in_shardings=(rows,)).lower(S((8,), torch.float32)), file)
    loaded = xf.export.load(file)
    assert loaded.in_info[0][0].sharding.mesh.shape == {"data": 4, "tensor": 2}
    with pytest.raises(xf.errors.ShardingError, match="traced for a mesh of 8 devices, but this"):
        loaded(torch.ones(8))
