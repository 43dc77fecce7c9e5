"""`negate_bits`: bits of integers, in programs that make integers narrower.

XLA's CPU target (jaxlib 0.10.2, not 0.7.1 or 0.12.0) ends the process when it compiles ``x & y`` or
``x | y`` of a signed integer that was converted from a longer one, as in JAX's
``jit(lambda x, y: x.astype("int32") & y)`` for x of int64: `RewriteTruncBitExt`, in
simplify_arith.cc, asks a vector for its width in bits.
"""

from __future__ import annotations

from collections.abc import Iterator

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import fill, fresh_ids, instruction, with_id

_BITS = {pb.S8: 8, pb.S16: 16, pb.S32: 32, pb.S64: 64}
_OTHER = {"and": "or", "or": "and"}


def negate_bits(proto: pb.HloModuleProto) -> None:
    """Replace ``x & y`` by ``~(~x | ~y)`` and ``x | y`` by ``~(~x & ~y)``, in place.

    XLA moves what is between a conversion and its users, so any conversion may reach them.
    """
    found = [c for c in proto.computations if any(map(_is_on_bits, c.instructions))]
    if not found or not any(map(_has_narrowed, proto.computations)):
        return
    ids = fresh_ids(proto)
    for c in found:
        fill(c, [made for i in c.instructions for made in _negated(i, ids)])


def _is_on_bits(i: pb.HloInstructionProto) -> bool:
    # Scalars do not end the process, and reductions are known by theirs.
    return i.opcode in _OTHER and i.shape.element_type in _BITS and bool(i.shape.dimensions)


def _has_narrowed(c: pb.HloComputationProto) -> bool:
    by_id = {i.id: i for i in c.instructions}
    return any(
        _BITS.get(by_id[i.operand_ids[0]].shape.element_type, 0) > _BITS[i.shape.element_type]
        for i in c.instructions
        if i.opcode == "convert" and i.shape.element_type in _BITS
    )


def _negated(i: pb.HloInstructionProto, ids: Iterator[int]) -> Iterator[pb.HloInstructionProto]:
    if not _is_on_bits(i):
        yield i
        return
    negated = [instruction("not", next(ids), i.shape, [k], of=i) for k in i.operand_ids]
    yield from negated
    other = instruction(_OTHER[i.opcode], next(ids), i.shape, [n.id for n in negated], of=i)
    yield other
    result = with_id(i, i.id)
    result.opcode = "not"
    result.operand_ids[:] = [other.id]
    yield result
