"""Products of narrow numbers, as narrow numbers.

torch_xla multiplies bfloat16 and float16 in float32 and rounds the result. The product of two such
numbers is exact in float32, so a narrow multiplication gives the same result as rounding it. But
XLA may omit a rounding that is followed by a widening, and then keeps large values in float32:
twice the memory.
"""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import drop_unused

_NARROW = (pb.BF16, pb.F16)


def narrow_products(contents: Contents) -> None:
    """Multiply narrow numbers as such wherever they are widened for it, in place.

    The contents still list what it removes: conversions and products.
    """
    for c, converts in contents.everywhere(("convert",)):
        roundings = [i for i in converts if i.shape.element_type in _NARROW]
        if not roundings:
            continue
        by_id = contents.by_id(c)
        replaced: set[int] = set()
        for i in roundings:
            product = by_id[i.operand_ids[0]]
            if product.opcode != "multiply" or product.shape.element_type != pb.F32:
                continue
            widened = [by_id[k] for k in product.operand_ids]
            if all(w.opcode == "convert" for w in widened):
                sources = [by_id[w.operand_ids[0]] for w in widened]
                if all(s.shape.element_type == i.shape.element_type for s in sources):
                    i.opcode = "multiply"
                    i.operand_ids[:] = [s.id for s in sources]
                    i.metadata.CopyFrom(product.metadata)
                    replaced.update((product.id, *product.operand_ids))
        drop_unused(c, replaced)
