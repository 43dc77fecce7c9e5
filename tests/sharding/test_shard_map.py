"""`shard_map` computes what JAX does; specs, trees, meshes and numbers of traces."""

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
from tests.support.jax_names import names
from tests.support.shard_map_programs import programs
from tests.support.varying_type_programs import typed_programs
from xfunc import sharding
from xfunc.errors import ShardingError
from xfunc.sharding import P, make_mesh, shard_map

MESH = make_mesh((4, 2), ("x", "y"))
RECORDED = np.load(Path(__file__).parents[1] / "data" / "shard_map.npz")
PROGRAMS = programs(names()) | typed_programs(names())


def close(got: Any, want: Any) -> None:
    leaves = xf.tree.leaves(xf.device_get(got)), xf.tree.leaves(want)
    torch.testing.assert_close(*leaves, rtol=1e-9, atol=1e-9, check_dtype=False)


@pytest.mark.parametrize(
    "name", [n for n in PROGRAMS if n.startswith("inside") and n.endswith("alone")]
)
def test_jax_gradients_inside_shard_map_equal_one_device(name: str) -> None:
    """JAX's, which ours equal."""
    several = name.removesuffix(" alone")
    leaves = [k for k in RECORDED if k.rpartition("/")[0] == name]
    assert leaves
    for k in leaves:
        np.testing.assert_allclose(RECORDED[k.replace(name, several)], RECORDED[k], rtol=1e-9)


@pytest.mark.quick(4, seed=0)
@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("name", PROGRAMS)
def test_shard_map_equals_jax(name: str) -> None:
    want = [torch.from_numpy(RECORDED[k]) for k in RECORDED if k.rpartition("/")[0] == name]
    close(PROGRAMS[name](), want)


SPECS = {
    1: [(), ("x",), (None, "x"), (None, None, "x", None), (("x",),), (None, ("x",), None)],
    2: [("x",), ("y", "x"), (None, ("x", "y")), (("y", "x"),), (None, "y", "x"), ("x", (), "y")],
    3: [("z", "x", "y"), (("x", "z"), "y"), (None, ("z", "y", "x")), ("y",), ((), ("x", "y"))],
}


@pytest.mark.quick
def test_shard_map_every_form_of_spec(any_mesh: Any) -> None:
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


def test_shard_map_prefixes_and_trees() -> None:
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


@pytest.mark.quick
def test_shard_map_result_sharding() -> None:
    x = torch.randn(8, 8)
    f = xf.jit(shard_map(lambda a: a * 2, MESH, P("x", "y"), P("x", "y")))
    assert sharding.sharding_of(f(x)) == sharding.NamedSharding(MESH, P("x", "y"))


def test_shard_map_decorator_takes_mesh_in_use() -> None:
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


def test_shard_map_new_functions_trace_once() -> None:
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


def test_shard_map_on_abstract_mesh_only_lowers() -> None:
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


def test_shard_map_on_one_device() -> None:
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
