"""Sums and products of many narrow numbers, accumulated in float32 and rounded once.

torch_xla reduces bfloat16 and float16 in their own type, in which a sum stops growing after a few
hundred terms: 256 + 1 is 256 in bfloat16. torch and JAX accumulate in float32. XLA fuses the
conversion into the reduction; there is no wide copy of the input.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import opcodes
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import add_copies, copied, instruction, remove_computations, with_id

NARROW = (pb.BF16, pb.F16)


def accumulate_wide(contents: Contents) -> None:
    """Make sums and products of many narrow numbers accumulate in float32, in place."""
    combiners = {c.id for c in contents.proto.computations if _combines(c)}
    if combiners:
        _widen(contents, opcodes.ACCUMULATING, NARROW, combiners)


def compute_wide(contents: Contents) -> None:
    """Make operations that would round more than once in float16 use float32, in place.

    On the CPU, XLA accumulates float16 dots in float16, and computes functions in several steps. It
    widens all of bfloat16 by itself.
    """
    _widen(contents, opcodes.COARSE, (pb.F16,))


def _combines(c: pb.HloComputationProto) -> bool:
    """Whether a computation is the sum or product of two narrow numbers."""
    if len(c.instructions) != 3:
        return False
    parameters = [i.id for i in c.instructions if i.opcode == "parameter"]
    root = next(i for i in c.instructions if i.id == c.root_id)
    if root.opcode not in ("add", "multiply") or root.shape.element_type not in NARROW:
        return False
    return sorted(root.operand_ids) == sorted(parameters)


def _widen(
    contents: Contents,
    which: frozenset[str],
    types: Collection[int],
    combiners: set[int] | None = None,
) -> None:
    """Give some instructions wide operands, and round their results.

    Args:
        contents: of the module; it is changed.
        which: their opcodes.
        types: their element types.
        combiners: which computations they call.
    """
    proto = contents.proto
    widening = _Widening(contents)
    for c, found in contents.everywhere(which):
        chosen = {
            i.id
            for i in found
            if i.shape.element_type in types
            and (combiners is None or i.called_computation_ids[-1] in combiners)
        }
        if chosen:
            widening.run(c, chosen)
    if widening.combiners:
        used = set(chain.from_iterable(map(contents.called, proto.computations)))
        remove_computations(proto, widening.combiners.keys() - used)
        new = {c.id for c in widening.combiners.values()}
        add_copies(proto.computations, widening.combiners.values())
        proto.computations.sort(key=lambda c: c.id not in new)  # Callees come before their callers.


class _Widening:
    """Creates the float32 instructions that a module needs.

    Attributes:
        combiners: the computations of wide numbers, by the id of those of narrow ones.
    """

    def __init__(self, contents: Contents) -> None:
        self.combiners: dict[int, pb.HloComputationProto] = {}
        self._contents, self._ids = contents, contents.ids
        self._computations = {c.id: c for c in contents.proto.computations}

    def run(self, c: pb.HloComputationProto, chosen: Collection[int]) -> None:
        """Widen some instructions of a computation."""
        by_id = self._contents.by_id(c)
        places = [(k, i) for k, i in enumerate(c.instructions) if i.id in chosen]
        wide: dict[int, int] = {}
        shift = 0  # of the places, by what was inserted before
        for place, i in places:
            made: list[pb.HloInstructionProto] = []
            for k in i.operand_ids:
                if k not in wide and by_id[k].shape.element_type in NARROW:
                    made.append(self._convert(by_id[k], pb.F32))
                    wide[k] = made[-1].id
            reduced = with_id(i, next(self._ids))
            reduced.shape.element_type = pb.F32
            reduced.operand_ids[:] = [wide.get(k, k) for k in i.operand_ids]
            reduced.called_computation_ids[:] = map(self._combiner, i.called_computation_ids)
            made.append(reduced)
            for new in made:
                self._contents.insert(c, place + shift, new)
                shift += 1
            rounded = self._convert(reduced, i.shape.element_type)
            rounded.id, rounded.name = i.id, i.name
            i.CopyFrom(rounded)

    def _convert(
        self, of: pb.HloInstructionProto, element_type: pb.PrimitiveType
    ) -> pb.HloInstructionProto:
        made = instruction("convert", next(self._ids), of.shape, [of.id], of=of)
        made.shape.element_type = element_type
        if of.HasField("sharding") and not of.sharding.is_shard_group:
            made.sharding.CopyFrom(of.sharding)
        return made

    def _combiner(self, narrow: int) -> int:
        """The id of the same computation in float32."""
        if narrow not in self.combiners:
            made = copied(self._computations[narrow], {}, lambda: next(self._ids))
            signature = made.program_shape
            for shape in (
                *(i.shape for i in made.instructions), *signature.parameters, signature.result
            ):  # fmt: skip
                if shape.element_type in NARROW:
                    shape.element_type = pb.F32
            self.combiners[narrow] = made
        return self.combiners[narrow].id
