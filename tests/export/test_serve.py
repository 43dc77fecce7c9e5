"""Exported programs in processes that can import xfunc and what it needs, and no more."""

import json
import os
import subprocess
import sys
import textwrap
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.model import generate
from examples.llama.model.plan import Plan
from xfunc import P

S = xf.ShapeDtypeStruct
ROOT = Path(__file__).parents[2]
MESH = xf.AbstractMesh((4, 2), ("data", "tensor"))

ALONE = """if True:
    import json, sys
    from importlib.machinery import PathFinder

    (folder,) = sys.argv[1:]
    ALLOWED = sys.stdlib_module_names | set(
        "xfunc optree jaxtyping wadler_lindig google torch torchgen functorch jax jaxlib numpy "
        "scipy ml_dtypes opt_einsum sympy mpmath networkx jinja2 markupsafe filelock fsspec "
        "typing_extensions".split()
    )

    class Only:
        @staticmethod
        def find_spec(name, path=None, target=None):
            top = name.partition(".")[0]
            if top not in ALLOWED and not top.startswith("_sysconfigdata"):
                return None
            return PathFinder.find_spec(name, path, target)

    sys.meta_path[2:] = [Only]
    import torch, xfunc as xf

    inputs = torch.load(f"{folder}/inputs")
    loaded = {name: xf.export.load(f"{folder}/{name}") for name in inputs}
    facts = {}
"""

CALLS = """
    results = {n: [xf.device_get(loaded[n](*args)) for args in inputs[n]] for n in inputs}
    torch.save(results, f"{folder}/results")
"""

MESSAGE = """
    def message(call):
        try:
            call()
        except Exception as error:
            lines = str(error).splitlines()
            said = [line for line in lines if not line.startswith("  at <string>:")]
            return f"{type(error).__name__}: " + "\\n".join(said)
"""

TRACING = """
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
    facts["alone"] = not {"torch_xla", "libtpu"} & set(sys.modules)
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
    return generate.generate(params, prompt, config=CONFIG, new=4)


def step(
    params: model.Params,
    cache: tuple[torch.Tensor, torch.Tensor],
    token: torch.Tensor,
    at: torch.Tensor,
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """One token of a server: the cache is written in place."""
    before, first = {"layers": generate.Cache(*cache)}, torch.zeros_like(token)
    logits, after = generate.advance(params, before, token[:, None], at, first, CONFIG, Plan())
    return tuple(after["layers"]), logits.argmax(-1)


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


def serve(folder: Path, code: str, devices: int) -> tuple[Any, dict[str, Any]]:
    """The results of all calls and the facts in a process that imports only what xfunc needs."""
    env = {"CPU_NUM_DEVICES": str(devices), "XFUNC_BACKEND": "", "PYTHONPATH": str(ROOT)}
    script = ALONE + CALLS + MESSAGE + code + END
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", script, folder],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts.pop("alone")
    return torch.load(folder / "results"), facts


def test_serve_on_one_device(tmp_path: Path) -> None:
    params, prompt = weights(), torch.arange(12).reshape(2, 6)
    cache = tuple(generate.empty(CONFIG, 2, 8, torch.float32, Plan())["layers"])
    token = prompt[:, 0]
    n = xf.Dim("n", max=9)
    inputs: dict[str, list[tuple[Any, ...]]] = {
        "gradient": [(normal(5, 4), normal(4, 4))],
        "range": [(normal(n, 4), normal(4, 3)) for n in (1, 2, 3, 8, 9)],
        "sampled": [(params, prompt)],
        "step": [(params, cache, token, torch.tensor(3))],
    }
    xf.export.save(xf.jit(gradient).lower(*inputs["gradient"][0]), tmp_path / "gradient")
    xf.export.save(
        xf.jit(ragged).lower(S((n, 4), torch.float32), S((4, 3), torch.float32)), tmp_path / "range"
    )
    xf.export.save(xf.jit(sampled).lower(params, prompt), tmp_path / "sampled")
    donating = xf.jit(step, donate_argnums=1)
    xf.export.save(donating.lower(*inputs["step"][0]), tmp_path / "step")
    torch.save(inputs, tmp_path / "inputs")
    results, facts = serve(tmp_path, TRACING, 1)
    assert facts.pop("eager") == [2.0, 2.0, 2.0]
    refusal, devices = facts.pop("chosen")
    assert refusal.startswith("ImportError: the backend 'torch_xla' needs torch_xla, which is not")
    assert devices == [0], "The backend in use stays."
    assert set(facts.values()) == {None}, "Our own tracer traces there."
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


@pytest.mark.slow
def test_serve_on_eight_devices(tmp_path: Path) -> None:
    n = xf.Dim("n", max=16, multiple_of=4)
    rows, columns = xf.NamedSharding(MESH, P("data")), xf.NamedSharding(MESH, P(None, "tensor"))
    settings: dict[str, Any] = {"in_shardings": (rows, columns), "donate_argnums": 0}
    avals = S((8, 4), torch.float32), S((4, 6), torch.float32)
    inputs = {
        "sharded": [(normal(8, 4), normal(4, 6))],
        "range": [(normal(n, 4), normal(4, 6)) for n in (4, 8, 12)],
    }
    jitted = xf.jit(sharded, out_shardings=(rows, None), **settings)
    xf.export.save(jitted.lower(*avals), tmp_path / "sharded")
    jitted = xf.jit(sharded, **settings)
    xf.export.save(jitted.lower(S((n, 4), torch.float32), avals[1]), tmp_path / "range")
    torch.save(inputs, tmp_path / "inputs")
    results, facts = serve(tmp_path, SHARDED, 8)
    for name in inputs:
        for got, args in zip(results[name], inputs[name], strict=True):
            equal(got, sharded(*args))
    assert facts["expects"] == ["P('data')", "P(None, 'tensor')"]
    assert facts["same"]
    assert facts["results"] == ["P('data')", "P()"]
    assert "was donated to a jitted function" in facts["donated"]
    assert "takes argument 0 sharded as NamedSharding" in facts["otherwise"]
    assert facts["again"]


Point = namedtuple("Point", "x y")


def nested(p: Any, op: str, pair: Any, power: int, *, scale: Any) -> Any:
    out = getattr(torch, op)(p["w"][0] @ p["w"][1]) ** power + pair.x * scale["by"]
    return {"out": [out, None], 3: Point(out.sum(), (pair.y,)), "empty": {}, True: p["more"]["z"]}


def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


CALLED_WRONGLY = """
    from collections import namedtuple
    Point = namedtuple("Point", "x y")
    p, x, y, scale = torch.load(f"{folder}/arguments")
    f, pair = loaded["nested"], Point(x, y)
    out = xf.device_get(f(p, pair, scale=scale))
    facts["values"] = [[path, x.tolist()] for path, x in xf.tree.leaves_with_path(out)]
    facts["order"] = list(map(str, out))
    wrong = {
        "shape": lambda: f({**p, "w": (p["w"][0], torch.ones(3, 2))}, pair, scale=scale),
        "missing": lambda: f({"w": p["w"]}, pair, scale=scale),
        "unexpected": lambda: f({**p, "b": torch.ones(2)}, pair, scale=scale),
        "class": lambda: f({**p, "w": list(p["w"])}, pair, scale=scale),
        "fields": lambda: f(p, (x, y), scale=scale),
        "none": lambda: f({**p, "none": []}, pair, scale=scale),
        "keywords": lambda: f(p, pair),
        "string": lambda: f(p, pair, scale={"by": "much"}),
        "too many": lambda: f(p, pair, 2, scale=scale),
        "like the original": lambda: f(p, "sin", pair, 2, scale=scale),
        "large": lambda: loaded["square"](2**70),
    }
    facts |= {name: message(call) for name, call in wrong.items()}
"""


def test_serve_trees_and_wrong_arguments(tmp_path: Path) -> None:
    p = {"w": (normal(3, 4), normal(4, 2)), "more": {"z": normal(5), "a": normal(1)}, "none": None}
    pair, scale = Point(normal(3, 2), normal(2)), {"by": torch.tensor(2.0)}
    jitted = xf.jit(nested, static_argnums=(1, 3))
    xf.export.save(jitted.lower(p, "sin", pair, 2, scale=scale), tmp_path / "nested")
    xf.export.save(xf.jit(square).lower(2), tmp_path / "square")
    torch.save((p, *pair, scale), tmp_path / "arguments")
    torch.save({"nested": [], "square": [(3,)]}, tmp_path / "inputs")
    results, facts = serve(tmp_path, CALLED_WRONGLY, 1)
    assert results["square"] == [torch.tensor(9)]
    want = nested(p, "sin", pair, 2, scale=scale)
    values = facts.pop("values")
    assert [path for path, _ in values] == [path for path, _ in xf.tree.leaves_with_path(want)]
    equal([torch.tensor(x) for _, x in values], want)
    assert facts.pop("order") == ["out", "3", "empty", "True"]

    loaded = {name: xf.export.load(tmp_path / name) for name in ("nested", "square")}
    here: dict[str, Any] = {"loaded": loaded, "torch": torch, "xf": xf, "folder": str(tmp_path)}
    exec(textwrap.dedent(MESSAGE + "    facts = {}\n" + CALLED_WRONGLY), here)
    assert facts == {name: here["facts"][name] for name in facts}, "As with optree."
    static = "Leave out the static arguments (1, 3 of nested): they are part of the program."
    expected = {
        "shape": "argument 0['w'][1]: float32[3,2] instead of float32[4,2]",
        "missing": "argument 0['more']['a']: missing",
        "unexpected": "argument 0['b']: unexpected",
        "class": "argument 0['w']: a list instead of a tuple",
        "fields": "argument 1.x: missing",
        "none": "argument 0['none']: a list instead of None",
        "keywords": "scale['by']: missing",
        "string": "was given 'much' (a str) as scale['by']\n",
        "too many": "argument 2: unexpected\nHint: pass arguments of the exported shapes, or "
        f"export for these. {static}",
        "like the original": "TypeError: nested, which was exported, was given 'sin' (a str) as "
        f"argument 1\nHint: pass tensors, NumPy arrays and Python numbers. {static}",
        "large": f"OverflowError: argument 0 of square is {2**70}, too large for an int64\nHint: ",
    }
    for name, part in expected.items():
        assert part in facts[name]


def test_exported_program_for_mesh_needs_devices(tmp_path: Path) -> None:
    rows = xf.NamedSharding(MESH, P("data"))
    file = tmp_path / "program"
    xf.export.save(xf.jit(torch.sin, in_shardings=(rows,)).lower(S((8,), torch.float32)), file)
    loaded = xf.export.load(file)
    assert loaded.in_info[0][0].sharding.mesh.shape == {"data": 4, "tensor": 2}
    with pytest.raises(xf.errors.ShardingError, match="traced for a mesh of 8 devices, but this"):
        loaded(torch.ones(8))
