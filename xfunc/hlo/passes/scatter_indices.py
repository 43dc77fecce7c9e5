"""`narrow_scatter_indices`: indices of scatters become signed 32-bit ones, as JAX has them.

XLA's partitioner (of jaxlib 0.7.1 and of torch_xla 2.9) ends the process on a scatter with indices
of another type, if it divides one of their dimensions unevenly: it pads them with -1, always as a
signed 32-bit number (`HandleScatter`; "Check failed: IsScalarWithElementType", in
spmd_partitioner_util.h). Which dimensions it divides, only the partitioner knows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import constant, fill, fresh_ids, instruction

_MOST = 2**31 - 1
_WIDE = {  # with the least index; all negative ones are out of range
    pb.S64: (torch.int64, -1),
    pb.U64: (torch.uint64, 0),
    pb.U32: (torch.uint32, 0),
}
_Made = list[pb.HloInstructionProto]


def narrow_scatter_indices(proto: pb.HloModuleProto) -> None:
    """Give scatters signed 32-bit indices, in place, where the sizes allow it."""
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
                if indices.shape.element_type != pb.S32 and max(sizes, default=0) <= _MOST:
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
    """The id of the same indices as int32; indices out of range remain out of range."""
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
        within = x
        if x.shape.element_type in _WIDE:
            dtype, least = _WIDE[x.shape.element_type]
            ends: list[int] = []
            for n in (least, _MOST):  # Bounds that are scalars end the process on the CPU.
                end = constant(n, next(ids), dtype, of=x)
                whole = instruction("broadcast", next(ids), x.shape, [end.id], of=x)
                made += [end, whole]
                ends.append(whole.id)
            within = instruction("clamp", next(ids), x.shape, [ends[0], x.id, ends[1]], of=x)
            made.append(within)
        new = instruction("convert", next(ids), shape, [within.id], of=x)
    made.append(new)
    return new.id
