"""`keep_updates_apart`: arrays of which a part is overwritten with what is computed from the rest.

XLA's CPU target (jaxlib 0.7.1 to 0.10.2) fuses what it writes into an array with the write, in
place. Once it has moved a reshape across the write, it no longer sees that a slice is one of the
same array, and fuses that too: the loop reads elements that it has written before. So ``y[1:] =
x[:-1]`` fills a copy of ``x`` with its first element if a row is taken, or a dimension is added,
before or afterwards. ``(x + 1).at[1:].set((x + 1)[:-1])[None]`` of JAX is wrong, too; GPUs are
right: https://github.com/openxla/xla/issues/49176.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

from xfunc.graph import opcodes
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import computation, fill, fresh_ids, instruction
from xfunc.hlo.passes.barriers import is_barrier

_Instruction = pb.HloInstructionProto
_SAME = frozenset("reshape transpose bitcast copy opt-barrier".split())
_ON_EACH = opcodes.ELEMENTWISE | opcodes.ENCODINGS
# Which operand is what they write into the first one; XLA writes a slice for a scatter of one.
_WRITES = {"dynamic-update-slice": 1, "scatter": 2}


def keep_updates_apart(proto: pb.HloModuleProto) -> None:
    """Compute such parts in full before they are written, in place.

    They go through functions that XLA does not inline: see `outline_barriers`.
    """
    writing = [c for c in proto.computations if any(i.opcode in _WRITES for i in c.instructions)]
    if not writing:
        return
    ids = fresh_ids(proto)
    barriers = {c.id for c in proto.computations if is_barrier(c)}
    inlined = {
        i.called_computation_ids[0]
        for c in proto.computations
        for i in c.instructions
        if i.opcode == "call"
    }
    made: dict[bytes, pb.HloComputationProto] = {}  # by shapes
    for c in writing:
        arrays = _Arrays(c, barriers, c.id in inlined)
        places = {i.id: _WRITES[i.opcode] for i in c.instructions if i.opcode in _WRITES}
        read = {k for k, place in places.items() if arrays.is_read_elsewhere(k, place)}
        instructions: list[_Instruction] = []
        for i in c.instructions:
            if i.id in read:
                update = arrays.by_id[i.operand_ids[places[i.id]]]
                shape = update.shape.SerializeToString(deterministic=True)
                if shape not in made:
                    made[shape] = _apart(update.shape, ids)
                call = instruction("call", next(ids), update.shape, [update.id], i)
                call.called_computation_ids.append(made[shape].id)
                i.operand_ids[places[i.id]] = call.id
                instructions.append(call)
            instructions.append(i)
        if read:
            fill(c, instructions)
    for k, new in enumerate(made.values()):
        proto.computations.insert(k, new)  # before their callers


def _apart(shape: pb.ShapeProto, ids: Iterator[int]) -> pb.HloComputationProto:
    """The function that returns its argument behind a barrier."""
    given = instruction("parameter", next(ids), shape)
    barrier = instruction("opt-barrier", next(ids), shape, [given.id])
    return computation("apart", [given], [barrier], [barrier.id], ids)


class _Arrays:
    """Which instructions of a computation stand for the same array.

    Args:
        barriers: functions that XLA does not inline.
        is_inlined: whether its parameters may be parts of one array of the caller's.
    """

    def __init__(
        self, c: pb.HloComputationProto, barriers: Collection[int], is_inlined: bool
    ) -> None:
        self.by_id = {i.id: i for i in c.instructions}
        self._barriers = barriers
        self._array: dict[int, int] = {}
        parts: dict[tuple[int, int], int] = {}
        readers: Counter[int] = Counter()
        for i in c.instructions:
            array = i.id
            if i.opcode in _SAME:
                array = self._array[i.operand_ids[0]]
            elif i.opcode == "get-tuple-element":
                array = parts.setdefault((self._array[i.operand_ids[0]], i.tuple_index), i.id)
            elif i.opcode == "parameter" and is_inlined:
                array = 0
            else:
                readers.update(self._array[k] for k in i.operand_ids[:])
            self._array[i.id] = array
        self._readers = readers

    def is_read_elsewhere(self, k: int, place: int) -> bool:
        """Whether a write depends on other elements of the array than those it replaces.

        Args:
            k: its id.
            place: which of its operands is written.
        """
        write = self.by_id[k]
        update = write.operand_ids[place]
        array = self._array[write.operand_ids[0]]
        if self._readers[array] < 2 and array:
            return False
        if math.prod(self.by_id[update].shape.dimensions) == 1:
            return False  # It is read before anything is written.
        todo, seen = [(update, True)], set[tuple[int, bool]]()
        while todo:
            k, on_each = one = todo.pop()
            i = self.by_id[k]
            if one in seen or (on_each and self._is_replaced(i, write)):
                continue
            if self._array[k] == array:
                return True
            seen.add(one)
            if i.opcode == "call" and i.called_computation_ids[0] in self._barriers:
                continue
            on_each = on_each and i.opcode in _ON_EACH
            todo += [(k, on_each) for k in i.operand_ids[:]]
        return False

    def _is_replaced(self, i: _Instruction, write: _Instruction) -> bool:
        """Whether an instruction reads the elements that are written, in their places."""
        return (
            i.opcode == "slice"
            and write.opcode == "dynamic-update-slice"
            and i.operand_ids[0] == write.operand_ids[0]
            and i.shape.dimensions == self.by_id[write.operand_ids[1]].shape.dimensions
            and all(
                d.stride == 1 and self._value(k) == d.start
                for d, k in zip(i.slice_dimensions, write.operand_ids[2:], strict=True)
            )
        )

    def _value(self, k: int) -> int | None:
        """A constant."""
        i = self.by_id[k]
        if i.opcode != "constant":
            return None
        return next(iter((*i.literal.s64s, *i.literal.s32s)), None)
