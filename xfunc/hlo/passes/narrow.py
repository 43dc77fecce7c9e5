"""Products of narrow numbers, as narrow numbers.

torch_xla multiplies bfloat16 and float16 in float32 and rounds the result. The product of two such
numbers is exact in float32, so a narrow multiplication gives the same result as rounding it. But
XLA may omit a rounding that is followed by a widening, and then keeps large values in float32:
twice the memory.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from xfunc.hlo import hlo_pb2 as pb

_NARROW = (pb.BF16, pb.F16)


def narrow_products(proto: pb.HloModuleProto) -> None:
    """Multiply narrow numbers as such wherever they are widened for it, in place."""
    for c in proto.computations:
        converts = [i for i in c.instructions if i.opcode == "convert"]
        roundings = [i for i in converts if i.shape.element_type in _NARROW]
        if not roundings:
            continue
        by_id = {i.id: i for i in c.instructions}
        replaced: dict[int, pb.HloInstructionProto] = {}
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
                    replaced |= {product.id: product, **{w.id: w for w in widened}}
        if replaced:
            _drop_unused(c, replaced)


def _drop_unused(c: pb.HloComputationProto, replaced: dict[int, pb.HloInstructionProto]) -> None:
    """Remove those of the products and widenings that nothing uses any more."""
    instructions = list(c.instructions)
    uses = Counter(chain.from_iterable([i.operand_ids for i in instructions]))
    uses.update(chain.from_iterable([i.control_predecessor_ids for i in instructions]))
    uses[c.root_id] += 1
    for k in reversed(range(len(instructions))):
        key = instructions[k].id
        if key in replaced and not uses[key]:
            uses.subtract(replaced[key].operand_ids)
            uses.subtract(replaced[key].control_predecessor_ids)
            del c.instructions[k]
