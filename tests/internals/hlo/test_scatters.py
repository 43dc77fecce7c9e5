"""Indices of scatters behind a barrier: the same program."""

from __future__ import annotations

import pytest
import torch

from xfunc.hlo import Module, verify
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.passes.scatters import hide_positions

from .conftest import Lower, Run

pytestmark = pytest.mark.quick


def hidden(module: Module) -> Module:
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    hide_positions(proto)
    verify(found := Module(proto))
    return found


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
