"""Slices with steps, and pads between elements, of arrays that devices divide."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.sharding import NamedSharding
from xfunc.sharding import PartitionSpec as P

Tensor = torch.Tensor
SPECS = [
    (P("x"), P()),
    (P("y"), P()),
    (P(("x", "y")), P()),
    (P("x"), P("x")),
    (P("y"), None),
    (P(), P("y")),
]
SLICES = [(0, 16, 2), (1, 16, 2), (3, 15, 3), (0, 16, 3), (15, 16, 5), (2, 7, 5)]


def put(mesh: Any, x: Tensor, spec: Any) -> Tensor:
    if spec is None or max(x.shape) % 8:
        return x
    return xf.with_sharding_constraint(x, NamedSharding(mesh, spec))


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("specs", SPECS, ids=str)
def test_slices_with_steps(mesh: Any, specs: tuple[Any, Any]) -> None:
    x = torch.linspace(-1, 2, 16, dtype=torch.float64)

    def loss(x: Tensor, sharded: bool) -> Any:
        total = x.sum()
        parts: list[Tensor] = []
        given = put(mesh, x, specs[0]) if sharded else x
        for k, (start, stop, step) in enumerate(SLICES):
            part = given[start:stop:step]
            part = put(mesh, part, specs[1]) if sharded else part
            parts.append(part)
            total = total + (part.sin() * (k + 1)).sum()
        return total, parts

    got = xf.jit(xf.grad(loss, has_aux=True), static_argnums=1)(x, True)
    gradient, parts = xf.device_get(got)
    torch.testing.assert_close(gradient, torch.func.grad(lambda x: loss(x, False)[0])(x))
    for part, (start, stop, step) in zip(parts, SLICES, strict=True):
        assert torch.equal(part, x[start:stop:step])


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("specs", SPECS, ids=str)
def test_associative_scan_along_a_divided_axis(
    mesh: Any, specs: tuple[Any, Any], size: int
) -> None:
    x = torch.linspace(-1, 2, size * 2, dtype=torch.float64).reshape(size, 2)
    weights = torch.linspace(1, 2, size * 2, dtype=torch.float64).reshape(size, 2)

    def loss(x: Tensor) -> Tensor:
        sums = xf.associative_scan(torch.add, put(mesh, x, specs[0]))
        return (put(mesh, sums, specs[1]) * weights).sum()

    value, gradient = xf.device_get(xf.jit(xf.value_and_grad(loss))(x))
    torch.testing.assert_close(value, (x.cumsum(0) * weights).sum())
    torch.testing.assert_close(gradient, weights.flip(0).cumsum(0).flip(0))
