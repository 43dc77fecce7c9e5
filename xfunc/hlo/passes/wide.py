"""Operations on float16 that would round more than once, in float32."""

from __future__ import annotations

from collections.abc import Collection

from xfunc.graph import opcodes
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import instruction, with_id


def upcast_f16(contents: Contents) -> None:
    """Make operations that would round more than once in float16 use float32, in place.

    On the CPU, XLA accumulates float16 dots in float16, and computes functions in several steps. It
    widens all of bfloat16 by itself.
    """
    widening = _Widening(contents)
    for c, found in contents.everywhere(opcodes.COARSE):
        chosen = {i.id for i in found if i.shape.element_type == pb.F16}
        if chosen:
            widening.run(c, chosen)


class _Widening:
    """Creates the float32 instructions that a module needs."""

    def __init__(self, contents: Contents) -> None:
        self._contents, self._ids = contents, contents.ids

    def run(self, c: pb.HloComputationProto, chosen: Collection[int]) -> None:
        """Widen some instructions of a computation."""
        by_id = self._contents.by_id(c)
        places = [(k, i) for k, i in enumerate(c.instructions) if i.id in chosen]
        wide: dict[int, int] = {}
        shift = 0  # of the positions, by earlier insertions
        for place, i in places:
            made: list[pb.HloInstructionProto] = []
            for k in i.operand_ids:
                if k not in wide and by_id[k].shape.element_type == pb.F16:
                    made.append(self._convert(by_id[k], pb.F32))
                    wide[k] = made[-1].id
            computed = with_id(i, next(self._ids))
            computed.shape.element_type = pb.F32
            computed.operand_ids[:] = [wide.get(k, k) for k in i.operand_ids]
            made.append(computed)
            for new in made:
                self._contents.insert(c, place + shift, new)
                shift += 1
            rounded = self._convert(computed, i.shape.element_type)
            rounded.id, rounded.name = i.id, i.name
            i.CopyFrom(rounded)

    def _convert(
        self, of: pb.HloInstructionProto, element_type: pb.PrimitiveType
    ) -> pb.HloInstructionProto:
        result = instruction("convert", next(self._ids), of.shape, [of.id], of=of)
        result.shape.element_type = element_type
        if of.HasField("sharding") and not of.sharding.is_shard_group:
            result.sharding.CopyFrom(of.sharding)
        return result
