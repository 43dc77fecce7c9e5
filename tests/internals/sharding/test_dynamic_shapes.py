"""Programs of a bucket on a mesh: in shardings, constraints, regions, communication.

Each equals the program of the exact shape, with NaN in the padding of the arguments.
"""

# What a function in a region returns is not known to pyright.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import dataclasses
from typing import Any

import pytest
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.model.plan import Plan
from examples.llama.parallel.sharding import Sharding
from examples.llama.train.train_config import Recipe
from xfunc.errors import ShardingError
from xfunc.symbolic import call_cache

P = xf.P
MESH = ((4, 2), ("data", "model"))
S, T = xf.Dim("S", max=64, multiple_of=8), xf.Dim("T", max=16)
BUCKETS = {"S": [32, 64], "T": [8, 16]}


@pytest.fixture
def mesh():
    return xf.make_mesh(*MESH)


@pytest.fixture(autouse=True)
def nan_in_the_padding(monkeypatch):
    pad = call_cache.pad

    def with_nan(x, shape):
        wide = pad(x, shape)
        if wide is not x and wide.is_floating_point():
            inside = tuple(slice(0, n) for n in x.shape)
            found = torch.full_like(wide, torch.nan)
            found[inside] = wide[inside]
            return found
        return wide

    monkeypatch.setattr(call_cache, "pad", with_nan)


def check(f, spec, calls, buckets, reason=None, **options):
    jitted = xf.jit(f, dynamic_shapes=spec, buckets=buckets, **options)
    jitted.clear_cache()  # Functions of one skeleton share theirs.
    found = [jitted(*args) for args in calls]
    explained = jitted.explain()
    assert (reason or "one program") in explained, explained
    assert reason or jitted.cache_info().compiles == 1
    exact = xf.jit(f, **options)
    for got, args in zip(found, calls, strict=True):
        for g, w in zip(xf.tree.leaves(got), xf.tree.leaves(exact(*args)), strict=True):
            torch.testing.assert_close(g.cpu(), w.cpu(), rtol=1e-8, atol=1e-9)


def total(x, axes: str | tuple[str, ...] = "data"):
    return xf.psum(x, axes)


def steps(x):
    return xf.scan(lambda c, a: (c * 0.5 + a, c.sin()), x[0] * 0, x)[1]


DATA, EACH = P("data"), P()
ALL = P(("data", "model"))

# What each device does, how the array goes in and what comes out.
REGIONS = {
    "sum": (lambda x: total(x.sum(0)), DATA, EACH),
    "mean of each part": (lambda x: total(x.mean(0) ** 2), DATA, EACH),
    "along the divided dimension": (lambda x: x.cumsum(0) - x.amax(0), DATA, DATA),
    "two axes": (lambda x: total(x.softmax(0).square().mean(0), ("data", "model")), ALL, EACH),
    "gathered": (lambda x: xf.all_gather(x, "data", tiled=True).cumsum(0)[1:], DATA, DATA),
    "scattered": (lambda x: xf.psum_scatter(x, "data", tiled=True), P(None), DATA),
    "exchanged": (lambda x: xf.all_to_all(x, "data", 1, 0, tiled=True), DATA, P(None, "data")),
    "handed on": (lambda x: xf.ppermute(x, "data", [(k, (k + 1) % 4) for k in range(4)]).sum(
        0, keepdim=True), DATA, DATA),
    "its own number": (lambda x: torch.ones_like(x) * xf.axis_index("data"), DATA, DATA),
    "loop": (steps, DATA, DATA),
    "loop of sums": (lambda x: xf.fori_loop(0, 3, lambda _, c: c / 2 + c.sum(0), x), DATA, DATA),
    "branches": (
        lambda x: xf.cond(
            xf.axis_index("data") < 2, lambda c: c - c.sum(0), lambda c: c.cumsum(0), x
        ),
        DATA,
        DATA,
    ),
}  # fmt: skip


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("name", REGIONS)
def test_dynamic_shapes_in_shard_map(mesh, name, order):
    body, into, out = REGIONS[name]

    def f(x):
        region = xf.shard_map(body, mesh=mesh, in_specs=(into,), out_specs=out, check_rep=False)
        return region(x.sin()).cumsum(0)

    fun = xf.grad(lambda x: (f(x) ** 2).sum()) if order else f
    calls = [(torch.randn(n, 8, dtype=torch.float64),) for n in (16, 24)]
    check(fun, ((S, None),), calls, BUCKETS["S"])


@pytest.mark.parametrize("name", ["loop", "loop of sums", "branches"])
def test_dynamic_shapes_in_checkpointed_shard_map(mesh, name):
    body, into, out = REGIONS[name]
    region = xf.shard_map(body, mesh=mesh, in_specs=(into,), out_specs=out, check_rep=False)
    fun = xf.grad(lambda x: xf.checkpoint(region)(x.sin()).square().sum())
    calls = [(torch.randn(n, 8, dtype=torch.float64),) for n in (16, 24)]
    check(fun, ((S, None),), calls, BUCKETS["S"])


def test_dynamic_shapes_in_shard_map_of_other_dimension(mesh):
    region = xf.shard_map(
        lambda x: total(x.softmax(0).mean(0)), mesh=mesh, in_specs=(P(None, "data"),), out_specs=P()
    )
    calls = [(torch.randn(n, 8, dtype=torch.float64),) for n in (3, 7, 13)]
    check(region, ((T, None),), calls, [16])
    check(xf.grad(lambda x: region(x).square().sum()), ((T, None),), calls, [16])


def test_dynamic_shapes_in_shard_map_of_two_dims(mesh):
    def of(body, into, out):
        return xf.shard_map(body, mesh=mesh, in_specs=(into,), out_specs=out)

    held = torch.arange(8.0)

    def f(x):
        flat = of(lambda x: x.cumsum(0), DATA, DATA)(x.reshape(-1)).reshape(x.shape)
        rows = of(lambda x: total(x.log_softmax(1).sum((0, 1))), DATA, EACH)(x)
        kept = of(lambda y: y + total(y.sum()), DATA, DATA)(held).sum()
        ranked = of(lambda x: x.sort(0)[0].cumsum(0), DATA, DATA)(x)
        return flat.sum(1), rows * kept, xf.vmap(lambda a: a.mean())(x), ranked

    calls = [(torch.randn(a, b, dtype=torch.float64),) for a, b in ((8, 3), (16, 5), (24, 8))]
    check(f, ((S, T),), calls, {"S": [32], "T": [8]})


@pytest.mark.parametrize(
    ("body", "options", "reason"),
    [
        (lambda x: torch.fft.fft(x, dim=0).real, {}, "another fft"),
        (lambda x: x * 2, {"axis_names": {"data"}}, "shard_map over some of the axes of the mesh"),
    ],
)
def test_dynamic_shapes_in_shard_map_fallback(mesh, body, options, reason):
    f = xf.shard_map(body, mesh=mesh, in_specs=(DATA,), out_specs=DATA, **options)
    check(f, ((S, None),), [(torch.randn(8, 2),)], [32], reason)


def test_dynamic_shapes_with_shardings(mesh):
    def f(w, x):
        h = xf.with_sharding_constraint(x @ w, xf.NamedSharding(mesh, P("data", None, "model")))
        return h.softmax(0).mean(), h.cumsum(1), steps(x)

    def loss(w, x):
        return f(w, x)[0] + f(w, x)[2].square().mean()

    spec = (None, (S, T, None))
    buckets = {"S": [32], "T": [8]}
    w = torch.randn(4, 4, dtype=torch.float64)
    calls = [(w, torch.randn(a, b, 4, dtype=torch.float64)) for a, b in ((8, 3), (16, 5))]
    divided = xf.NamedSharding(mesh, DATA)
    shardings = (xf.NamedSharding(mesh, P(None, "model")), divided)
    check(f, spec, calls, buckets)
    check(f, spec, calls, buckets, in_shardings=shardings, out_shardings=(None, divided, None))
    check(xf.value_and_grad(loss), spec, calls, buckets, in_shardings=shardings)
    check(xf.value_and_grad(loss), spec, calls, buckets, in_shardings=shardings,
          memory_limit=2**24)  # fmt: skip
    on_mesh = [(xf.device_put(w, shardings[0]), xf.device_put(x, divided)) for _, x in calls]
    check(f, spec, on_mesh, buckets)


def test_dynamic_shapes_pad_indivisible_sizes(mesh):
    divided = xf.NamedSharding(mesh, DATA)
    anything = xf.Dim("S", max=64)
    w = torch.randn(4, 4, dtype=torch.float64)
    calls = [(w, torch.randn(n, 4, dtype=torch.float64)) for n in (7, 16, 9, 2)]

    def loss(w, x):
        return torch.tanh(xf.with_sharding_constraint(x @ w, divided)).square().mean()

    spec, shardings = (None, (anything, None)), (None, divided)
    step = xf.jit(
        xf.value_and_grad(loss), dynamic_shapes=spec, buckets=[16], in_shardings=shardings
    )
    for _, x in calls:
        watched = w.clone().requires_grad_()
        expected = torch.tanh(x @ watched).square().mean()
        expected.backward()
        value, gradient = step(w, x)
        torch.testing.assert_close(value.cpu(), expected.detach())
        torch.testing.assert_close(gradient.cpu(), watched.grad)
    assert "4 calls, one program" in step.explain()
    twice = xf.jit(
        lambda x: 2 * x, in_shardings=divided, out_shardings=divided,
        dynamic_shapes=((anything,),), buckets=[8],
    )  # fmt: skip
    cut = twice(torch.arange(7.0))
    assert cut.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert xf.sharding_of(cut) == xf.NamedSharding(mesh, P())
    for n in (4, 8):  # The mesh divides both; only the first is cut.
        found = twice(torch.ones(n))
        assert xf.sharding_of(found) == divided
        assert found.tolist() == [2] * n
    lowered = twice.lower(xf.ShapeDtypeStruct((anything,), torch.float32))
    assert lowered.compile()(torch.arange(5.0)).tolist() == [0, 2, 4, 6, 8]
    # A bucket itself is divided.
    odd = xf.jit(lambda x: x.mean(), in_shardings=divided, dynamic_shapes=((anything,),),
                 buckets=[7, 8])  # fmt: skip
    with pytest.raises(ShardingError, match="dimension 0 is 7, which is not a multiple of 4"):
        odd(torch.ones(7))
    assert odd(torch.ones(8)).item() == 1
    # What was traced to find the program is no program of its own.
    with pytest.raises(ShardingError, match="which is not a multiple of 4"):
        xf.jit(loss)(w, calls[0][1])


def scaled(x):
    return x.sin() * x.mean(1, keepdim=True)


def on_all(mesh, dim, **options):
    where = xf.NamedSharding(mesh, P(("data", "model")))
    spec = ((dim, None),)
    return xf.jit(scaled, in_shardings=where, out_shardings=where, dynamic_shapes=spec, **options)


def test_dynamic_shapes_memory_limit_is_per_device(mesh):
    x = torch.randn(40, 64)
    all_arguments = 64 * 64 * 4
    shape = xf.ShapeDtypeStruct((S, 64), torch.float32)
    compiled = on_all(mesh, S, buckets=[64]).lower(shape).compile()
    peak = compiled.memory_analysis().peak_memory_in_bytes
    assert peak is not None
    assert peak < all_arguments
    limited = on_all(mesh, S, buckets=[64], memory_limit=all_arguments)
    for run in (compiled, limited, limited.lower(shape).compile()):
        torch.testing.assert_close(run(x).cpu(), scaled(x))
    assert "S=64" in limited.explain()


@pytest.mark.parametrize("n", [8, 5, 16])
def test_dynamic_shapes_default_buckets_on_a_mesh(mesh, n):
    jitted, x = on_all(mesh, xf.Dim("Q", max=64)), torch.randn(n, 3)
    torch.testing.assert_close(jitted(x).cpu(), scaled(x))
    assert f"bucket Q<={max(n, 8)}: 1 calls, one program" in jitted.explain()
    with pytest.raises(ShardingError, match=r"declare it with multiple_of=8"):
        jitted(torch.randn(3, 3))  # in a bucket of 4


@pytest.mark.slow
def test_dynamic_shapes_of_llama_packed_documents():
    """Loss and gradient of rows of any length, against eager torch at the exact shape."""
    lies = Sharding.of({"data": 2, "fsdp": 2, "tensor": 2})
    plain = Recipe(model.TINY["tiny"], 100, Plan())
    recipe = dataclasses.replace(plain, plan=Plan(sharding=lies))
    params = xf.device_get(model.init(plain.model, 0))
    placed = xf.device_put(params, lies.params(model.weights(plain.model)))
    length = xf.Dim("S", min=8, max=48)
    rows: Any = (None, length)
    step = xf.jit(
        lambda params, batch: train.gradient(params, batch, recipe)[:2],
        dynamic_shapes=(None, model.Batch(rows, rows, rows)),
        buckets=[48],
    )
    generator = torch.Generator().manual_seed(0)
    for n in (21, 9, 48, 32):
        windows = torch.randint(plain.model.vocab, (8, n + 1), generator=generator)
        ends = torch.randint(1, n, (8, 2), generator=generator).sort(-1)[0]
        segments = 1 + (torch.arange(n) >= ends[..., None]).sum(1)
        segments[3:, n - 3 :] = 0
        batch = model.batch_of(windows)._replace(segments=segments)
        got = xf.device_get(step(placed, batch))
        with xf.disable_jit():
            want = train.gradient(params, batch, plain)[:2]
        xf.tree.map(lambda g, w: torch.testing.assert_close(g, w, rtol=2e-5, atol=2e-6), got, want)
    assert "bucket S<=48: 4 calls, " in step.explain()
    assert "one program" in step.explain()
    assert step.cache_info().compiles == 1
