"""Conversions of booleans to numbers that XLA does not turn into selects.

XLA turns ``convert(mask) * x`` into ``select(mask, x, 0)``, which is 0 where `x` is infinite or
NaN, while the product is NaN. By way of an integer, the conversion is not recognised, and costs
nothing: it is computed where it is used.
"""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import with_id

_INEXACT = frozenset((pb.F16, pb.BF16, pb.F32, pb.F64, pb.C64, pb.C128))


def convert_masks(contents: Contents) -> None:
    """Convert booleans to floating and complex numbers through an integer, in place."""
    for c, converts in contents.everywhere(("convert",)):
        by_id = contents.by_id(c)
        chosen = {
            i.id
            for i in converts
            if i.shape.element_type in _INEXACT
            and by_id[i.operand_ids[0]].shape.element_type == pb.PRED
        }
        if not chosen:
            continue
        for place, i in reversed([*enumerate(c.instructions)]):
            if i.id in chosen:
                whole = with_id(i, next(contents.ids))
                whole.shape.element_type = pb.S32
                i.operand_ids[:] = [whole.id]
                contents.insert(c, place, whole)
