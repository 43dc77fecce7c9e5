"""Matrix products in the orientation that XLA's CPU target computes fastest."""

from __future__ import annotations

from collections.abc import Iterator

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import fill, fresh_ids, instruction, with_id


def orient_products(proto: pb.HloModuleProto) -> None:
    """Transpose the smaller operand of products such as ``g.mT @ x``, in place.

    The gradient of every weight is such a product. Eigen, which XLA's CPU target calls, packs its
    left operand, a transposed one column by column. If rows are a multiple of 1 KiB, the numbers of
    a column compete for a few sets of the cache, and the product takes up to twice the time.
    ``(x.mT @ g).mT`` has the same terms and packs the smaller operand that way. The barrier keeps
    XLA from folding the outer transposition back into the product.
    """
    ids: Iterator[int] | None = None
    for c in proto.computations:
        by_id = {i.id: i for i in c.instructions}
        dots = [i for i in c.instructions if i.opcode == "dot" and _transposed(i, by_id)]
        if not dots:
            continue
        folded = {k for i in c.instructions if i.opcode == "transpose" for k in i.operand_ids}
        ids = ids or fresh_ids(proto)
        new: dict[int, list[pb.HloInstructionProto]] = {}
        for i in dots:
            m, n = i.shape.dimensions[-2:]
            if m > n:
                new[i.id] = _turned(i, by_id, ids)
            elif i.id in folded and m < n:
                new[i.id] = _held(i, ids)
        fill(c, [j for i in c.instructions for j in new.get(i.id, [i])])


def _transposed(i: pb.HloInstructionProto, by_id: dict[int, pb.HloInstructionProto]) -> bool:
    """Whether an instruction is ``a.mT @ b``."""
    left, right = (by_id[k] for k in i.operand_ids)
    rank = len(i.shape.dimensions)
    d = i.dot_dimension_numbers
    batch = list(range(rank - 2))
    return (
        left.opcode == "transpose"
        and list(left.dimensions) == [*batch, rank - 1, rank - 2]
        and len(right.shape.dimensions) == rank
        and list(d.lhs_batch_dimensions) == list(d.rhs_batch_dimensions) == batch
        and list(d.lhs_contracting_dimensions) == [rank - 1]
        and list(d.rhs_contracting_dimensions) == [rank - 2]
    )


def _held(i: pb.HloInstructionProto, ids: Iterator[int]) -> list[pb.HloInstructionProto]:
    """An instruction behind a barrier, which keeps XLA from turning it."""
    dot = with_id(i, next(ids))
    return [dot, instruction("opt-barrier", i.id, i.shape, [dot.id], of=i)]


def _turned(
    i: pb.HloInstructionProto, by_id: dict[int, pb.HloInstructionProto], ids: Iterator[int]
) -> list[pb.HloInstructionProto]:
    """``(b.mT @ a).mT`` instead of ``a.mT @ b``."""
    left, right = i.operand_ids
    *batch, m, n = i.shape.dimensions
    rank = len(batch) + 2
    dot = with_id(i, next(ids))
    dot.shape.dimensions[:] = [*batch, n, m]
    dot.operand_ids[:] = [right, by_id[left].operand_ids[0]]
    dot.dot_dimension_numbers.lhs_contracting_dimensions[:] = [rank - 2]
    held = instruction("opt-barrier", next(ids), dot.shape, [dot.id], of=i)
    back = instruction("transpose", i.id, i.shape, [held.id], of=i)
    back.dimensions[:] = [*range(len(batch)), rank - 1, rank - 2]
    return [dot, held, back]
