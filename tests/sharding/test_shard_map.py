"""`shard_map`: as in JAX, and in every transform."""

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
from tests.support.shard_map_structures import MESH, STRUCTURES, arguments, close, rows
from tests.support.varying_type_programs import typed_programs
from xfunc import sharding
from xfunc.errors import ShardingError
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


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_jax(name: str) -> None:
    want = [torch.from_numpy(RECORDED[k]) for k in RECORDED if k.rpartition("/")[0] == name]
    close(PROGRAMS[name](), want)


@pytest.mark.sample(3, seed=0)
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
        a, b = rows(x), rows(w)
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
