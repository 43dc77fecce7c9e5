"""Programs that differ by how they write dimensions of size 1, and programs that differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf
from xfunc.hlo import Module
from xfunc.symbolic.interpolation import fit
from xfunc.symbolic.polynomial import Env
from xfunc.symbolic.shape_domain import Range, ShapeDomain

BOX = ShapeDomain({"S": Range(1, 64)})
WEIGHT = torch.arange(18.0).reshape(2, 3, 3)
SAME: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "outer product": lambda x: x[:, None] * x[None],
    "repeated rows": lambda x: x[None].expand(3, -1) * x,
    "transposed": lambda x: (x[:, None] * torch.ones(1, 3)).T.cumsum(1),
    "positions": lambda x: x * torch.arange(x.shape[0]),
    "slices": lambda x: x[1:] - x[:-1],
    "products of batches": lambda x: torch.einsum(
        "bhik,bhjk->bhij", x[:, None, None, None] * WEIGHT, x[:, None, None, None] + WEIGHT
    ),
}
OTHER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "another number": lambda x: x * (2 if x.shape[0] == 1 else 3),
    "another sign of zero": lambda x: x * (-0.0 if x.shape[0] == 1 else 0.0),
    "another operation": lambda x: x.sin() if x.shape[0] == 1 else x.cos(),
    "another order": lambda x: x - x.sin() if x.shape[0] == 1 else x.sin() - x,
    "another shape": lambda x: x.squeeze(),
    "a longer slice": lambda x: x[:3],
    "another dtype": lambda x: x.half() if x.shape[0] == 1 else x,
    "another side": lambda x: (
        x[:, None, None]
        * (WEIGHT[0] @ WEIGHT[0].mT if x.shape[0] == 1 else WEIGHT[0].mT @ WEIGHT[0])
    ),
    "another reduction": lambda x: x.sum(0) if x.shape[0] == 1 else x.prod(0),
}


@pytest.mark.parametrize("name", [*SAME, *OTHER])
def test_is_same_at_size_one(name: str) -> None:
    f = {**SAME, **OTHER}[name]

    def trace(env: Env) -> Module:
        x = torch.ones(env["S"])
        return xf.jit(f).lower(x).module

    assert fit(trace, BOX).is_same({"S": 1}, trace({"S": 1})) == (name in SAME)
