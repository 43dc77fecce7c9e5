"""Indices of scatters behind a barrier: the same program."""

from __future__ import annotations

import pytest
import torch

from xfunc.hlo import Module
from xfunc.hlo.passes.scatters import divide_evenly, hide_positions

from .conftest import Lower, Run, changed

pytestmark = pytest.mark.quick


def hidden(module: Module) -> Module:
    return changed(module, hide_positions)


def test_hide_positions(lower: Lower, run: Run) -> None:
    index = torch.tensor([[1, 0], [2**31, 3], [2**32, -1], [2, -(2**63)]])
    args = [torch.zeros(5, 2), index, torch.arange(1.0, 9).reshape(4, 2)]
    module = lower(lambda x, i, v: [x.scatter_add(0, i, v), x.index_add(0, i[:, 1], v)], args)
    found = hidden(module)
    scatters = [i for i in found.entry.instructions if i.opcode == "scatter"]
    assert [i.operands[1].opcode for i in scatters] == ["opt-barrier"] * 2
    for got, want in zip(run(found, args), run(module, args), strict=True):
        assert torch.equal(got, want)
    assert hidden(found).to_bytes() == found.to_bytes()


def test_hide_positions_without_scatters(lower: Lower) -> None:
    module = lower(lambda x, i: [x.gather(0, i)], [torch.ones(3, 2), torch.zeros(2, 2).long()])
    assert hidden(module).to_bytes() == module.to_bytes()


def test_divide_evenly_extends_products_and_extremes(lower: Lower, run: Run) -> None:
    index = torch.tensor([[1, 0], [4, 3], [0, -1], [2, 0], [1, 1]])
    args = [torch.full((5, 2), 2.0), index, torch.arange(1.0, 11).reshape(5, 2)]

    def fun(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        kinds = ("prod", "amin", "amax", "sum")
        return [x.scatter_reduce(0, i, v, kind) for kind in kinds]

    module = lower(fun, args)
    found = changed(module, divide_evenly, 4)
    scatters = [i for i in found.entry.instructions if i.opcode == "scatter"]
    assert [i.operands[2].shape.dims for i in scatters] == [(8, 4)] * 3 + [(5, 2)]
    for got, want in zip(run(found, args), run(module, args), strict=True):
        assert torch.equal(got, want)
    assert changed(found, divide_evenly, 4).to_bytes() == found.to_bytes()
