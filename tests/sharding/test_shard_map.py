"""`shard_map`: as in JAX, in every transform, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from tests.support.cases import OURS, PLAIN
from tests.support.jax_names import names
from tests.support.shard_map_programs import programs
from tests.support.varying_type_programs import typed_programs
from xfunc import sharding
from xfunc.errors import ShardingError, TreeMismatchError
from xfunc.sharding import P, make_mesh, shard_map

RECORDED = np.load(Path(__file__).parents[1] / "data" / "shard_map.npz")


PROGRAMS = programs(names()) | typed_programs(names())


@pytest.mark.parametrize(
    "name", [n for n in PROGRAMS if n.startswith("inside") and n.endswith("alone")]
)
def test_gradients_inside_are_those_of_one_device(name: str) -> None:
    """JAX's, which ours equal."""
    several = name.removesuffix(" alone")
    leaves = [k for k in RECORDED if k.rpartition("/")[0] == name]
    assert leaves
    for k in leaves:
        np.testing.assert_allclose(RECORDED[k.replace(name, several)], RECORDED[k], rtol=1e-9)


def close(got: Any, want: Any) -> None:
    leaves = xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(want)
    torch.testing.assert_close(*leaves, rtol=1e-9, atol=1e-9, check_dtype=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_jax(name: str) -> None:
    want = [torch.from_numpy(RECORDED[k]) for k in RECORDED if k.rpartition("/")[0] == name]
    close(PROGRAMS[name](), want)


MESH = make_mesh((4, 2), ("x", "y"))
RING = [(i, (i + 1) % 4) for i in range(4)]


def _rows(x: torch.Tensor) -> torch.Tensor:
    """What the devices along x hold."""
    return x.reshape(4, 2, *x.shape[1:])


def scan_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor, b: torch.Tensor) -> Any:
        def step(c: torch.Tensor, v: torch.Tensor) -> Any:
            c = sharding.ppermute(torch.tanh(c * v.sum()), "x", RING)
            return c, sharding.psum(c.sum(), ("x", "y"))

        return xf.scan(step, a, b)

    last, sums = shard_map(each, MESH, (P("x"), P("x", "y")), (P(("x", "y")), P()))(x, w)
    return last.sum() * sums.sum()


def plain_scan_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b = _rows(w).unflatten(2, (2, 4)).sum(-1)  # of device x, step, device y
    c, total = torch.stack([_rows(x)] * 2, 1), torch.zeros((), dtype=x.dtype)
    for k in range(2):
        c = torch.tanh(c * b[:, k, :, None]).roll(1, 0)
        total = total + c.sum()
    return c.sum() * total


def staged_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor) -> torch.Tensor:
        inner = xf.jit(lambda v: sharding.psum(v @ w[:2], "x") + sharding.axis_index("x"))
        kept = xf.checkpoint(lambda v: torch.tanh(inner(v)).sum() * v)
        return kept(a) + xf.scan(lambda c, _: (torch.sin(inner(c)[:2] + c), None), a, length=2)[0]

    return shard_map(each, MESH, P("x"), P("x"))(x).pow(2).sum()


def plain_staged_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    places = torch.arange(4, dtype=x.dtype)[:, None]

    def inner(v: torch.Tensor) -> torch.Tensor:
        return (v @ w[:2]).sum(0) + places

    a = _rows(x)
    c = a
    for _ in range(2):
        c = torch.sin(inner(c)[:, :2] + c)
    return (torch.tanh(inner(a)).sum(1, keepdim=True) * a + c).pow(2).sum()


def inside_scan(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def step(c: torch.Tensor, v: torch.Tensor) -> Any:
        def each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            whole = sharding.all_gather(a, "x", tiled=True)
            return torch.sin(whole @ w) * b.sum() / 8

        out = shard_map(each, MESH, (P("x"), P()), P(), check_vma=False)(c, v)
        return out, out.sum()

    c, ys = xf.scan(step, x, w[:3])
    return c.pow(2).sum() + ys.prod()


def plain_inside_scan(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    ys = []
    for v in w[:3]:
        x = torch.sin(x @ w) * v.sum() / 8
        ys.append(x.sum())
    return x.pow(2).sum() + torch.stack(ys).prod()


def branch_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(t: Any) -> torch.Tensor:
        a, b = t["a"], t["b"][0]
        total = sharding.psum(a.sum(), "x")

        def on_sum(v: torch.Tensor) -> torch.Tensor:
            return torch.sin(v) * sharding.psum(v.sum(), "x")

        chosen = xf.cond(total > 100, lambda v: v * 2, on_sum, a)
        return sharding.psum(chosen @ b, "x")

    specs = ({"a": P("x"), "b": P("x", "y")},)
    return shard_map(each, MESH, specs, P("y"))({"a": x, "b": [w]}).pow(2).sum()


def plain_branch_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((torch.sin(x) * x.sum()) @ w).pow(2).sum()


def partly(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        got = sharding.all_gather(torch.tanh(a), "x", tiled=True) @ w
        sent = sharding.ppermute(got[:2] * sharding.axis_index("x"), "x", RING)
        cut = sharding.psum_scatter(b * a.sum(), "x", scatter_dimension=1, tiled=True)
        turned = sharding.all_to_all(b * a.sum(), "x", 1, 0, tiled=True)
        return (sent.sum() * a + cut.sum() + turned.pow(2).sum()) / 64

    f = shard_map(each, MESH, (P("x"), P("x")), P("x"), axis_names={"x"})
    return f(x, w).pow(2).sum()


def plain_partly(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    got = torch.tanh(x) @ w
    sent = (got[:2] * torch.arange(4, dtype=x.dtype)[:, None]).roll(1, 0)
    b = _rows(w) * _rows(x).sum(1)[:, None, None]
    parts = b.reshape(8, 4, 2)
    cut, turned = parts.sum((0, 2)), parts.pow(2).sum((0, 2))
    out = sent.sum(1, keepdim=True) * _rows(x) + (cut + turned)[:, None]
    return (out / 64).pow(2).sum()


def nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        def inner(c: torch.Tensor) -> torch.Tensor:
            return (
                sharding.psum(torch.sin(c) * a.sum(), "y")
                + sharding.all_gather(c, ("x", "y")).sum((0, 2), keepdim=True)[0]
            )

        return shard_map(inner, None, P(None, "y"), P(), axis_names={"y"})(b * a.sum())

    with sharding.use_mesh(MESH):
        f = shard_map(each, in_specs=(P("x"), P("x")), out_specs=P("x"), axis_names={"x"})
        return (f(x, w) / 64).pow(2).sum()


def plain_nested(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a = _rows(x).sum(1)[:, None, None, None]
    b = _rows(w).unflatten(2, (2, 4)) * a  # of device x, row, device y, column
    own = (torch.sin(b) * a).sum(2)
    return ((own + b.sum((0, 2, 3))[:, None]) / 64).pow(2).sum()


def gradient_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def each(a: torch.Tensor) -> torch.Tensor:
        def loss(v: torch.Tensor) -> torch.Tensor:
            return sharding.psum(torch.sin(v @ w[:2]).sum() * v[0], "x")

        return a * xf.grad(loss)(a)

    return shard_map(each, MESH, P("x"), P("x"))(x).pow(2).sum()


def plain_gradient_inside(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a = _rows(x)
    inside = a @ w[:2]
    grad = (torch.cos(inside) @ w[:2].t()) * a[:, :1]
    first = torch.stack([torch.sin(inside).sum(1), torch.zeros(4, dtype=x.dtype)], 1)
    return (a * (grad + first)).pow(2).sum()


STRUCTURES = {
    "scan inside": (scan_inside, plain_scan_inside),
    "jit and checkpoint inside": (staged_inside, plain_staged_inside),
    "inside scan": (inside_scan, plain_inside_scan),
    "branch inside": (branch_inside, plain_branch_inside),
    "partly manual": (partly, plain_partly),
    "nested": (nested, plain_nested),
    "gradient inside": (gradient_inside, plain_gradient_inside),
}


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, dtype=torch.float64, generator=generator) / 4
    return x, torch.randn(8, 8, dtype=torch.float64, generator=generator) / 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("transform", OURS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_under_transforms(structure: str, transform: str) -> None:
    ours, plain = STRUCTURES[structure]
    x, w = arguments()
    close(OURS[transform](ours)(x, w), PLAIN[transform](plain)(x, w))


SPECS = {
    1: [(), ("x",), (None, "x"), (None, None, "x", None), (("x",),), (None, ("x",), None)],
    2: [("x",), ("y", "x"), (None, ("x", "y")), (("y", "x"),), (None, "y", "x"), ("x", (), "y")],
    3: [("z", "x", "y"), (("x", "z"), "y"), (None, ("z", "y", "x")), ("y",), ((), ("x", "y"))],
}


def test_every_form_of_spec(any_mesh: Any) -> None:
    x = torch.randn(8, 16, 8, 2, dtype=torch.float64)
    for entries in SPECS[any_mesh.ndim]:
        spec = P(*entries)
        local = sharding.NamedSharding(any_mesh, spec).shard_shape(x.shape)

        def each(a: torch.Tensor, s: torch.Tensor, local: Any = local) -> Any:
            assert tuple(a.shape) == local
            return torch.sin(a) * s, s * 2

        f = shard_map(each, any_mesh, (spec, P()), (spec, P()))
        scale = torch.tensor(3.0, dtype=torch.float64)
        close(f(x, scale), (torch.sin(x) * 3, scale * 2))
        lying = xf.device_put(x, sharding.NamedSharding(any_mesh, spec))
        got, grad = xf.value_and_grad(lambda s, f=f, x=lying: f(x, s)[0].sum() + f(x, s)[1])(scale)
        close((got, grad), (torch.sin(x).sum() * 3 + 6, torch.sin(x).sum() + 2))


def test_prefixes_and_trees() -> None:
    def each(p: Any, batch: Any, nothing: None) -> Any:
        out = {"h": batch["x"] @ p["w"] + p["b"], "none": nothing, "pair": (batch["y"], p["b"])}
        return out, sharding.psum(batch["y"].sum(), "x")

    p = {"w": torch.randn(4, 6), "b": torch.randn(6)}
    batch = {"x": torch.randn(8, 4), "y": torch.randn(8)}
    specs = ({"w": P(None, "y"), "b": P("y")}, P("x"), None)
    out = ({"h": P("x", "y"), "none": None, "pair": (P("x"), P("y"))}, P())
    got = shard_map(each, MESH, specs, out)(p, batch, None)
    want = {"h": batch["x"] @ p["w"] + p["b"], "none": None, "pair": (batch["y"], p["b"])}
    torch.testing.assert_close(
        xf.tree.leaves(xf.device_get(got)), xf.tree.leaves((want, batch["y"].sum()))
    )
    assert got[0]["none"] is None


def test_result_is_divided_as_it_is_said() -> None:
    x = torch.randn(8, 8)
    f = xf.jit(shard_map(lambda a: a * 2, MESH, P("x", "y"), P("x", "y")))
    assert sharding.sharding_of(f(x)) == sharding.NamedSharding(MESH, P("x", "y"))


def test_the_mesh_in_use_and_the_decorator() -> None:
    @shard_map(in_specs=P("x"), out_specs=P())
    def total(a: torch.Tensor) -> torch.Tensor:
        """The sum."""
        return sharding.psum(a, "x")

    x = torch.arange(8.0)
    with sharding.use_mesh(MESH):
        close(total(x), x.reshape(4, 2).sum(0))
    with sharding.use_mesh(make_mesh((8,), "x")):
        close(total(x), x.sum()[None])
    assert total.__doc__ == "The sum."
    with pytest.raises(ShardingError, match="no mesh is in use"):
        total(x)


def test_functions_made_anew_are_traced_once() -> None:
    x = torch.arange(8.0)
    for k in range(5):
        w = torch.full((2,), float(k))
        f = shard_map(lambda a, w=w: sharding.psum(a * w, "x"), MESH, P("x"), P())
        close(f(x), x.reshape(4, 2).sum(0) * k)
        assert xf.trace_count(f) == 1

        @xf.jit
        def step(x: torch.Tensor, f: Any = f) -> torch.Tensor:
            return xf.grad(lambda x: f(x).sum())(x)

        close(step(x), torch.full((8,), float(k)))


def test_gradients_with_and_without_the_check() -> None:
    x, w = arguments()

    def each(a: torch.Tensor, b: torch.Tensor) -> Any:
        h = sharding.psum(torch.tanh(a @ b), "x")
        return h, sharding.pmean(h.sum() * a.sum(), ("x", "y")), b.sum()

    specs = {"in_specs": (P("x"), P("x", "y"))}
    outs = (P("y"), P(), P(("x", "y")))

    def loss(**options: Any) -> Any:
        def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            f = shard_map(lambda a, b: (*each(a, b)[:2], each(a, b)[2][None]), MESH, **options)
            h, m, s = f(x, w)
            return h.pow(2).sum() * m + s.pow(3).sum()

        return xf.grad(run, argnums=(0, 1))(x, w)

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a, b = _rows(x), _rows(w)
        h = torch.tanh(torch.einsum("di,dij->dj", a, b)).sum(0)
        m = (h.reshape(2, 4).sum(1)[None] * a.sum(1)[:, None]).mean()
        return h.pow(2).sum() * m + b.reshape(4, 2, 2, 4).sum((1, 3)).pow(3).sum()

    want = torch.func.grad(plain, argnums=(0, 1))(x, w)
    close(loss(**specs, out_specs=outs), want)
    close(loss(**specs, out_specs=outs, check_vma=False), want)


def test_plain_autograd_and_torch_func() -> None:
    f = shard_map(lambda a: sharding.all_gather(a * a, "x").sum(0), MESH, P("x"), P())
    x = torch.arange(8.0, dtype=torch.float64, requires_grad=True)
    f(x).pow(2).sum().backward()
    want = torch.func.grad(lambda x: (x * x).reshape(4, 2).sum(0).pow(2).sum())(x.detach())
    close(x.grad, want)
    y = xf.device_put(x.detach())
    close(torch.func.grad(lambda y: f(y).pow(2).sum())(y), want)


def test_disable_jit() -> None:
    """Devices cannot be run operation by operation: the region is staged all the same."""
    f = shard_map(lambda a: sharding.psum(a * a, "x"), MESH, P("x"), P())
    x = torch.arange(8.0)
    with xf.disable_jit():
        out, grad = f(x), xf.grad(lambda x: f(x).sum())(x)
    assert out.device.type == grad.device.type == "cpu"
    close((out, grad), ((x * x).reshape(4, 2).sum(0), 2 * x))


def test_collectives_of_a_gradient() -> None:
    """One for the psum, and one for the gradient of the weight.

    None for the cotangent of the psum, which is the same on all devices.
    """
    mesh = sharding.AbstractMesh((64, 4), ("data", "model"))
    f = shard_map(
        lambda x, w: sharding.psum(torch.tanh(x @ w).square().sum(), ("data", "model")),
        mesh,
        (P("data"), P(None, "model")),
        P(),
    )
    shapes = (
        xf.ShapeDtypeStruct((128, 16), torch.float32),
        xf.ShapeDtypeStruct((16, 32), torch.float32),
    )
    text = xf.jit(xf.value_and_grad(f, argnums=1)).lower(*shapes).as_text()
    found = [line for line in text.splitlines() if " all-reduce(" in line]
    assert sum("replica_groups=[1,256]<=[256]" in line for line in found) == 1
    assert sum("replica_groups=[4,64]<=[64,4]T(1,0)" in line for line in found) == 1
    assert len(found) == 2
    assert len(text) < 20_000


def test_an_abstract_mesh_is_for_lowering() -> None:
    mesh = sharding.AbstractMesh((64, 64), ("x", "y"))
    for spec in (P("x"), P()):
        f = shard_map(lambda a: sharding.pmax(a, "x"), mesh, spec, P())
        lowered = xf.jit(f).lower(xf.ShapeDtypeStruct((128, 4), torch.float32))
        assert "all-reduce" in lowered.as_text()
        with pytest.raises(
            ShardingError, match="for a mesh of 4096 devices, but this process has 8"
        ):
            f(torch.zeros(128, 4))
        with pytest.raises(
            ShardingError, match="for a mesh of 4096 devices, but this process has 8"
        ):
            lowered.compile()


def test_on_a_single_device() -> None:
    program = """
import torch, xfunc as xf
from xfunc.sharding import *
mesh = make_mesh((1, 1), ("x", "y"))
x = torch.arange(16.0).reshape(4, 4)
def each(a):
    rows = all_gather(a, "x") + all_to_all(a[None], "x", 0, 0) + psum_scatter(a[None], "x")
    return psum(rows, ("x", "y")) + pmax(a, "y") + ppermute(a, "x", [(0, 0)]) + axis_index("x")
f = shard_map(each, mesh, P("x", "y"), P(None, None, "y"))
assert torch.equal(f(x).cpu(), 5 * x[None]), f(x)
assert torch.equal(xf.grad(lambda x: f(x).sum())(x).cpu(), 5 * torch.ones(4, 4))
assert shard_map(lambda a: ppermute(a, "x", []), mesh, P(), P())(x).sum() == 0
assert "custom-call" not in xf.jit(f).lower(x).as_text()
print("done")
"""
    env = {**os.environ, "CPU_NUM_DEVICES": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr


X = torch.zeros(8, 4)


@pytest.mark.parametrize(
    ("in_specs", "out_specs", "match"),
    [
        (P("q"), P(), r"the spec of a is P\('q'\), and Mesh\(x=4, y=2\) has no axis 'q'"),
        (P("x", "x"), P(), "'x' occurs twice"),
        (P(None, "x", "y"), P(), r"a has 2 dimensions \(8, 4\), and P\(None, 'x', 'y'\) is for 3"),
        (P(None, ("x", "y")), P(), r"dimension 1 is 4, which is not a multiple of 8 \(x=4 x y=2\)"),
        (P(P.UNCONSTRAINED), P(), "parts of an unknown size"),
        (None, P(), "the spec of a is None"),
        (P(), P("q"), r"the spec of the result\['k'\] is P\('q'\), and Mesh"),
        (P(), P("x", None, "y"), r"the result\['k'\] is float32\[8,4\] on each device, and its"),
        (P("x"), P(), r"the result\['k'\] has the spec P\(\), which does not name 'x', and may"),
        (P("x", "y"), P("x"), "which does not name 'y'"),
    ],
)  # fmt: skip
def test_specs_that_do_not_fit(in_specs: Any, out_specs: Any, match: str) -> None:
    with pytest.raises(ShardingError, match=match) as raised:
        shard_map(lambda a: {"k": a}, MESH, in_specs, out_specs)(X)
    assert "Hint: " in str(raised.value)
    assert "test_shard_map.py" in str(raised.value)


def test_trees_that_do_not_fit() -> None:
    for in_specs, out_specs, match in (
        ((P(), P()), P(), r"in_specs is not a prefix .* at the arguments it is \(P\(\), P\(\)\)"),
        (P(), {"k": P()}, "out_specs is not a prefix .* at the result"),
    ):
        with pytest.raises(TreeMismatchError, match=match):
            shard_map(lambda a: a, MESH, in_specs, out_specs)(X)


def test_calls_that_make_no_sense() -> None:
    def nested(a: torch.Tensor) -> torch.Tensor:
        return shard_map(lambda b: b, MESH, P("x"), P("x"))(a)

    other = sharding.AbstractMesh((2, 4), ("x", "y"))

    def elsewhere(a: torch.Tensor) -> torch.Tensor:
        return shard_map(lambda b: b, other, P("y"), P("y"), axis_names="y")(a)

    bad: Any = "mesh"
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (nested, {}, "is inside a shard_map that is manual over 'x' already"),
        (elsewhere, {"axis_names": "x"}, "on AbstractMesh.*inside a shard_map on Mesh"),
        (torch.sin, {"axis_names": ("x", "q")}, "axis_names has 'q', which is not an axis of Mesh"),
        (torch.sin, {"axis_names": "y"}, "but the shard_map is not manual over 'x'"),
        (torch.sin, {"mesh": bad}, "mesh is 'mesh'"),
    ]
    for f, options, match in cases:
        with pytest.raises(ShardingError, match=match):
            shard_map(
                lambda a, f=f: f(a), **{"mesh": MESH, **options}, in_specs=P("x"), out_specs=P("x")
            )(X)
    with pytest.raises(TypeError, match="was given no out_specs"):
        shard_map(torch.sin, MESH, P())
    with pytest.raises(TypeError, match="was given the keyword arguments a"):
        shard_map(lambda a: a, MESH, P("x"), P("x"))(a=X)


@pytest.mark.parametrize(
    "f",
    [
        torch.linalg.qr,
        torch.linalg.cholesky,
        torch.linalg.inv,
        torch.fft.fft,
        torch.linalg.eigvalsh,
    ],
    ids=lambda f: f.__name__,
)
def test_what_partly_manual_regions_cannot_do(f: Any) -> None:
    """XLA's partitioner ends the process there. Manual over all axes, all of it works."""
    x = torch.eye(4, dtype=torch.float64).repeat(4, 1, 1) * 3

    def each(a: torch.Tensor) -> torch.Tensor:
        out = f(a)
        return (out[1] if isinstance(out, tuple) else out).abs()

    with pytest.raises(ShardingError, match="manual over some axes of the mesh only"):
        shard_map(each, MESH, P("x"), P("x"), axis_names="x")(x)
    close(shard_map(each, MESH, P("x"), P("x"))(x), each(x))


def test_branches_in_partly_manual_regions() -> None:
    def each(a: torch.Tensor) -> torch.Tensor:
        return xf.cond(a.sum() > 0, torch.sin, torch.cos, a)

    with pytest.raises(ShardingError, match="has a branch in a region that XLA divides further"):
        shard_map(each, MESH, P("x"), P("x"), axis_names="x")(X)
    close(shard_map(each, MESH, P("x"), P("x"))(X), torch.cos(X))
