"""Matrix products in the orientation that XLA's CPU target computes fastest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import fill, fresh_ids, instruction, with_id
from xfunc.hlo.shape import Shape

Instructions = Mapping[int, pb.HloInstructionProto]

ROW = 1024  # bytes: rows of a multiple of this compete for the cache
SMALLEST = 16  # size of a batched product that Eigen computes


def orient_products(proto: pb.HloModuleProto) -> None:
    """Transpose the smaller operand of products such as ``g.mT @ x``, in place.

    The gradient of every weight is such a product. Eigen, which XLA's CPU target calls, packs its
    left operand; a transposed one, column by column. If rows are a multiple of 1 KiB, the elements
    of a column compete for a few sets of the cache, and the product takes up to twice the time.
    ``(x.mT @ g).mT`` has the same terms and packs the smaller operand that way. The barrier keeps
    XLA from folding the outer transposition back into the product.

    Products in a batch stay as they are unless they gain from it. XLA's own code for small ones
    ends the process if the layout of an operand is not that of its dimensions, and the outer
    transposition may be made one of layouts.
    """
    ids = fresh_ids(proto)
    for c in proto.computations:
        by_id = {i.id: i for i in c.instructions}
        left = {i.id: _left(i, by_id) for i in c.instructions if i.opcode == "dot"}
        transposed = {
            k: of
            for k, of in left.items()
            if of is not None and _is_worthwhile(by_id[k].shape, by_id[of].shape)
        }
        if not transposed:
            continue
        undone = {k for i in c.instructions if i.opcode == "transpose" for k in i.operand_ids}
        new: dict[int, list[pb.HloInstructionProto]] = {}
        for k, of in transposed.items():
            m, n = by_id[k].shape.dimensions[-2:]
            if m > n:
                new[k] = _turned(by_id[k], of, ids)
            elif m < n and k in undone:
                new[k] = _held(by_id[k], ids)
        fill(c, [j for i in c.instructions for j in new.get(i.id, [i])])


def _left(i: pb.HloInstructionProto, by_id: Instructions) -> int | None:
    """The ``a`` of a product ``a.mT @ b``, which may contract several dimensions of both."""
    left, right = (by_id[k] for k in i.operand_ids)
    d = i.dot_dimension_numbers
    rank, batch = len(right.shape.dimensions), len(d.rhs_batch_dimensions)
    contracted = list(range(batch, rank - 1))
    if (
        len(left.shape.dimensions) != rank
        or list(d.lhs_batch_dimensions) != list(range(batch))
        or list(d.rhs_batch_dimensions) != list(range(batch))
        or list(d.rhs_contracting_dimensions) != contracted
    ):
        return None
    if list(d.lhs_contracting_dimensions) == contracted:
        return left.id
    swapped = [*range(batch), rank - 1, rank - 2]
    is_swapped = left.opcode == "transpose" and list(left.dimensions) == swapped
    if is_swapped and list(d.lhs_contracting_dimensions) == [rank - 1]:
        return left.operand_ids[0]
    return None


def _is_worthwhile(product: pb.ShapeProto, left: pb.ShapeProto) -> bool:
    *batch, m, n = product.dimensions
    if not batch:
        return True
    rows = math.prod(left.dimensions) // max(math.prod(batch) * m, 1)
    row = Shape.from_proto(left).bytes // max(math.prod(batch) * rows, 1)
    return row % ROW == 0 and min(m, n, rows) >= SMALLEST


def _held(i: pb.HloInstructionProto, ids: Iterator[int]) -> list[pb.HloInstructionProto]:
    """An instruction followed by a barrier, which keeps XLA from reorienting it."""
    dot = with_id(i, next(ids))
    return [dot, instruction("opt-barrier", i.id, i.shape, [dot.id], of=i)]


def _turned(
    i: pb.HloInstructionProto, left: int, ids: Iterator[int]
) -> list[pb.HloInstructionProto]:
    """``(b.mT @ a).mT`` instead of ``a.mT @ b``."""
    *batch, m, n = i.shape.dimensions
    rank = len(batch) + 2
    dot = with_id(i, next(ids))
    dot.shape.dimensions[:] = [*batch, n, m]
    dot.operand_ids[:] = [i.operand_ids[1], left]
    d = dot.dot_dimension_numbers
    d.lhs_contracting_dimensions[:] = d.rhs_contracting_dimensions
    held = instruction("opt-barrier", next(ids), dot.shape, [dot.id], of=i)
    back = instruction("transpose", i.id, i.shape, [held.id], of=i)
    back.dimensions[:] = [*range(len(batch)), rank - 1, rank - 2]
    return [dot, held, back]
