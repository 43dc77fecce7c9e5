"""`narrow_scatter_indices`: 64-bit indices of scatters become 32-bit ones.

XLA's partitioner (jaxlib 0.7.1) ends the process on a scatter into a sharded array where one of the
indices is the position along a dimension, as torch's scatters along a dimension have them: it
offsets these by 32-bit numbers ("Check failed: IsScalarWithElementType").
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import constant, fill, fresh_ids, instruction

_MOST = 2**31 - 1
_Made = list[pb.HloInstructionProto]


def narrow_scatter_indices(proto: pb.HloModuleProto) -> None:
    """Give scatters 32-bit indices, in place, where the sizes allow it."""
    ids = fresh_ids(proto)
    for c in proto.computations:
        if not any(i.opcode == "scatter" for i in c.instructions):
            continue
        by_id = {i.id: i for i in c.instructions}
        made: _Made = []
        for i in c.instructions:
            if i.opcode == "scatter":
                k = len(i.operand_ids) // 2  # after the arrays, before as many updates
                indices = by_id[i.operand_ids[k]]
                sizes = by_id[i.operand_ids[0]].shape.dimensions
                if indices.shape.element_type == pb.S64 and max(sizes, default=0) <= _MOST:
                    i.operand_ids[k] = _narrow(indices, by_id, ids, made)
            made.append(i)
        if len(made) > len(c.instructions):
            fill(c, made)


def _narrow(
    x: pb.HloInstructionProto,
    by_id: dict[int, pb.HloInstructionProto],
    ids: Iterator[int],
    made: _Made,
) -> int:
    """The id of the same numbers with 32 bits; what is out of range stays out of range."""
    shape = pb.ShapeProto()
    shape.CopyFrom(x.shape)
    shape.element_type = pb.S32
    new = pb.HloInstructionProto()
    if x.opcode in ("iota", "concatenate"):  # The partitioner looks for positions here.
        new.CopyFrom(x)
        new.operand_ids[:] = [_narrow(by_id[k], by_id, ids, made) for k in x.operand_ids]
        new.id = next(ids)
        new.name = f"{x.opcode}.{new.id}"
        new.shape.CopyFrom(shape)
    else:
        ends: list[int] = []
        for n in (-1, _MOST):  # Bounds that are scalars end the process on the CPU.
            end = constant(n, next(ids), torch.int64, of=x)
            whole = instruction("broadcast", next(ids), x.shape, [end.id], of=x)
            made += [end, whole]
            ends.append(whole.id)
        within = instruction("clamp", next(ids), x.shape, [ends[0], x.id, ends[1]], of=x)
        new = instruction("convert", next(ids), shape, [within.id], of=x)
        made.append(within)
    made.append(new)
    return new.id
