"""32-bit indices of scatters: the same elements, with the same ones left out."""

from __future__ import annotations

import pytest
import torch

from xfunc.hlo import Module, Shape
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import entry_of, fill, fresh_ids, instruction
from xfunc.hlo.passes.scatter_indices import narrow_scatter_indices

from .conftest import Lower, Run, changed

pytestmark = pytest.mark.quick

MOST = 2**31
INDICES = [[1, 0], [MOST, 3], [2**32, -1], [-(2**32), 2], [2**63 - 1, 4], [2, -(2**63)]]


def narrowed(module: Module) -> Module:
    return changed(module, narrow_scatter_indices)


def test_narrow_scatter_indices_out_of_range(lower: Lower, run: Run) -> None:
    args = [torch.zeros(5, 2), torch.tensor(INDICES), torch.arange(1.0, 13).reshape(6, 2)]
    module = lower(lambda x, i, v: [x.scatter_add(0, i, v), x.index_add(0, i[:, 1], v)], args)
    found = narrowed(module)
    types = {
        o.shape.dtype
        for i in found.entry.instructions
        if i.opcode == "scatter"
        for o in i.operands[1:2]
    }
    assert types == {torch.int32}
    for got, want in zip(run(found, args), run(module, args), strict=True):
        assert torch.equal(got, want)
    assert narrowed(found).to_bytes() == found.to_bytes()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint32, torch.uint64])
def test_narrow_scatter_indices_of_other_types(dtype: torch.dtype, lower: Lower, run: Run) -> None:
    args = [torch.zeros(5), torch.tensor([3, 200, 0, 100]), torch.arange(1.0, 5)]
    module = lower(lambda x, i, v: [x.scatter_add(0, i, v)], args)
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    entry, ids = entry_of(proto), fresh_ids(proto)
    made: list[pb.HloInstructionProto] = []
    for i in entry.instructions:
        if i.opcode == "scatter":
            dims = next(x.shape.dimensions for x in made if x.id == i.operand_ids[1])
            shape = Shape(dtype, tuple(dims)).proto
            made.append(instruction("convert", next(ids), shape, i.operand_ids[1:2]))
            i.operand_ids[1] = made[-1].id
        made.append(i)
    fill(entry, made)
    found = narrowed(Module(proto))
    (scatter,) = (i for i in found.entry.instructions if i.opcode == "scatter")
    assert scatter.operands[1].shape.dtype == torch.int32
    for got, want in zip(run(found, args), run(module, args), strict=True):
        assert torch.equal(got, want)


def test_narrow_scatter_indices_keeps_iota(lower: Lower) -> None:
    """XLA's partitioner looks for an iota among the parts that indices are put together from."""
    args = [torch.zeros(5, 2), torch.zeros(6, 2).long(), torch.ones(6, 2)]
    found = narrowed(lower(lambda x, i, v: [x.scatter(0, i, v)], args))
    (scatter,) = (i for i in found.entry.instructions if i.opcode == "scatter")
    parts = scatter.operands[1]
    assert parts.opcode == "concatenate"
    assert [p.opcode for p in parts.operands] == ["convert", "iota"]
    assert {p.shape.dtype for p in parts.operands} == {torch.int32}
