"""Derivatives and places of maxima of computed values, on several devices.

They compare values that are computed once: see `tests/operations/test_maxima.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.sharding import NamedSharding
from xfunc.sharding import PartitionSpec as P

pytestmark = pytest.mark.usefixtures("partitioner")

Tensor = torch.Tensor
X = torch.linspace(-2, 2.5, 128).sin().reshape(8, 16)


def chain(x: Tensor) -> Tensor:
    return torch.sin(x.mean() + torch.cos(x * 1.3 + 0.2))


def slope(x: Tensor) -> Tensor:
    return xf.grad(lambda x: chain(x).amax(-1).sum())(x)


def exact(x: Tensor) -> Tensor:
    x = x.double().requires_grad_()
    return torch.autograd.grad(chain(x).amax(-1).sum(), x)[0]


@pytest.fixture
def x(mesh: Any) -> Tensor:
    return xf.device_put(X, NamedSharding(mesh, P("x", "y")))


def test_amax_gradient_and_argmax_partitioned(x: Tensor) -> None:
    found, place = xf.device_get(xf.jit(lambda x: (slope(x), chain(x).argmax(-1)))(x))
    torch.testing.assert_close(found.double(), exact(X), rtol=1e-4, atol=1e-6)
    assert place.tolist() == chain(X.double()).argmax(-1).tolist()


@pytest.mark.parametrize("kind", ["amin", "amax"])
def test_scatter_reduce_gradient_of_computed_values(x: Tensor, kind: str) -> None:
    places = torch.arange(8 * 16).reshape(8, 16) % 5

    def loss(x: Tensor) -> Tensor:
        y = chain(x)
        source = y.flip(0) + y.mean(1, keepdim=True)
        return y.scatter_reduce(1, places, source, kind).square().sum()

    found = xf.device_get(xf.jit(xf.grad(loss))(x.double()))
    want = X.double().requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(loss(want), want)[0])


@pytest.mark.parametrize("axes", [{"x", "y"}, {"x"}], ids=["all axes", "one axis"])
def test_amax_gradient_in_shard_map(mesh: Any, x: Tensor, axes: set[str]) -> None:
    spec = P("x", None)
    rows = xf.shard_map(slope, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=axes)
    found = xf.device_get(xf.jit(rows)(x))
    want = torch.cat([exact(part) for part in X.chunk(mesh.shape["x"])])
    torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-6)


def test_pmax_gradient_of_computed_values(mesh: Any, x: Tensor) -> None:
    spec = P("x", "y")
    most = xf.shard_map(
        lambda x: xf.sharding.pmax(chain(x), "y"),
        mesh=mesh,
        in_specs=spec,
        out_specs=P("x", None),
    )
    found = xf.device_get(xf.jit(xf.grad(lambda x: most(x).sum()))(x))
    y = X.double().requires_grad_()
    total = torch.zeros((), dtype=y.dtype)
    for rows in y.chunk(mesh.shape["x"]):
        parts = [chain(part) for part in rows.chunk(mesh.shape["y"], 1)]
        total = total + torch.stack(parts).amax(0).sum()
    (want,) = torch.autograd.grad(total, y)
    torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-6)
