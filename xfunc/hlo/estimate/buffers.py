"""The instructions of a computation that have their own memory, and the buffers that they read.

NOTE [the model of fusion]: XLA fuses elementwise operations into one loop, and values passed
between them are never written to memory. Here an elementwise operation, or one that moves elements,
has no memory if all its users are such operations. If there are several users, each computes it
again; but a slow operation (`opcodes.SLOW`) is computed once, and written. One that reads more than
`_MOST_READS` arrays is always written. So are a reduction and its operand, as on the CPU. A matrix
product also takes operands with their last two dimensions exchanged. Tuples, barriers and reshapes
are other names for the memory of their operands. Constants are not counted.

Some operations overwrite one of their operands if nothing reads it any more: elementwise ones,
slice updates, scatters; and a loop keeps its state where the initial value was.

A value in the host's memory (by an offloading policy) takes no device memory from its transfer to
the host until its transfer back, which writes it again. A part of a stack in the host's memory is
read from there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from xfunc.graph import opcodes
from xfunc.hlo.module import Computation, Instruction
from xfunc.hlo.passes.offload import DEVICE, is_on_host, is_placement
from xfunc.hlo.shape import Shape
from xfunc.hlo.spmd.annotations import is_pair


@dataclasses.dataclass(eq=False, slots=True)
class Buffer:
    """The memory of one array.

    Attributes:
        bytes: its size.
        instruction: the instruction that writes it.
        outside: whether it exists before the computation runs: an argument, a loop's state; or is
            in the host's memory.
    """

    bytes: int
    instruction: Instruction
    outside: bool = False


Value: TypeAlias = "tuple[Buffer, ...] | list[Value]"
"""For an array, the buffers that its users read; for a tuple, a list of its elements."""


@dataclasses.dataclass(eq=False, slots=True)
class Step:
    """An instruction that writes memory.

    Attributes:
        instruction: the instruction.
        reads: the buffers that it reads.
        writes: the buffers that it writes, each with the buffers that it may replace.
    """

    instruction: Instruction
    reads: tuple[Buffer, ...]
    writes: dict[Buffer, tuple[Buffer, ...]]


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """A computation's use of memory.

    Attributes:
        steps: its steps, in order.
        arguments: its parameters.
        result: its result.
    """

    steps: tuple[Step, ...]
    arguments: tuple[Value, ...]
    result: Value


def flow(computation: Computation) -> Flow:
    """The memory use of a computation without calls."""
    return _Walk(computation).flow()


def leaves(value: Value) -> Iterator[tuple[Buffer, ...]]:
    """The arrays in a value."""
    if isinstance(value, tuple):
        yield value
    else:
        for element in value:
            yield from leaves(element)


_ELEMENTWISE = opcodes.ELEMENTWISE | opcodes.ENCODINGS
_FUSES = _ELEMENTWISE | opcodes.MOVES
_JOINS = _FUSES | {"dynamic-update-slice"}  # operations that may compute their operands themselves
_MOST_READS = 16


class _Walk:
    def __init__(self, computation: Computation) -> None:
        self._computation = computation
        self._steps: list[Step] = []
        self._values: dict[int, Value] = {}

    def flow(self) -> Flow:
        fused = _fused(self._computation)
        for i in self._computation.instructions:
            self._values[i.id] = self._value(i, i.id in fused)
        arguments = tuple(self._values[p.id] for p in self._computation.parameters)
        return Flow(tuple(self._steps), arguments, self._values[self._computation.root.id])

    def _value(self, i: Instruction, fused: bool) -> Value:
        operands = [self._values[o.id] for o in i.operands]
        match i.opcode:
            case "parameter":
                return _written(i.shape, i, outside=True)
            case "constant":
                return ()
            case "tuple":
                return operands
            case "get-tuple-element":
                return _elements(operands[0])[i.proto.tuple_index]
            case "opt-barrier":
                return operands[0]
            case "call" if is_pair(i.called_computations[0].proto):
                return operands
            case "while" if i.shape.is_tuple:
                return self._loop(i, operands[0])
            case _:
                pass
        reads = tuple(dict.fromkeys(b for o in operands for leaf in leaves(o) for b in leaf))
        if fused and len(reads) <= _MOST_READS:
            return reads
        if _renames(i) and len(reads) == 1 and reads[0].bytes == i.bytes:
            return reads
        return self._step(i, reads, operands)

    def _step(self, i: Instruction, reads: tuple[Buffer, ...], operands: Sequence[Value]) -> Value:
        result: Value = (_on_host(i),) if is_on_host(i) else _written(i.shape, i)
        places: tuple[Buffer, ...] = ()
        if i.opcode in opcodes.IN_PLACE:
            places = next(leaves(operands[0]))
        elif i.opcode in _ELEMENTWISE or i.opcode == "reshape":
            places = reads
        writes = {
            b: tuple(p for p in places if p.bytes == b.bytes)
            for leaf in leaves(result)
            for b in leaf
        }
        self._steps.append(Step(i, reads, writes))
        return result

    def _loop(self, i: Instruction, start: Value) -> Value:
        """State that the body passes on unchanged stays where it is; the rest is written."""
        body = i.called_computations[0]
        result: list[Value] = []
        writes: dict[Buffer, tuple[Buffer, ...]] = {}
        for k, (old, shape) in enumerate(zip(_elements(start), i.shape.elements, strict=True)):
            if _hands_on(body, k):
                result.append(old)
                continue
            writer = _written_by(body, k) or i
            is_away = body.root.opcode == "tuple" and is_on_host(body.root.operands[k])
            new: Value = (_on_host(writer),) if is_away else _written(shape, writer)
            result.append(new)
            for before, after in zip(leaves(old), leaves(new), strict=True):
                writes[after[0]] = before if len(before) == 1 else ()
                if len(before) == 1 and before[0].instruction.opcode == "broadcast":
                    before[0].instruction = after[0].instruction  # it was made for this
                    if is_away:
                        before[0].bytes, before[0].outside = 0, True
        reads = tuple(dict.fromkeys(b for leaf in leaves(start) for b in leaf))
        self._steps.append(Step(i, reads, writes))
        return result


def _elements(value: Value) -> list[Value]:
    assert isinstance(value, list)  # of a tuple
    return value


def _written(shape: Shape, i: Instruction, outside: bool = False) -> Value:
    if shape.is_tuple:
        return [_written(s, i, outside) for s in shape.elements]
    return (Buffer(shape.bytes, i, outside),)


def _on_host(i: Instruction) -> Buffer:
    return Buffer(0, i, outside=True)


def _written_by(body: Computation, k: int) -> Instruction | None:
    """The instruction that computes element k of a loop body's state; for a stack, the value of
    each step.
    """
    if body.root.opcode != "tuple":
        return None
    i, seen = body.root.operands[k], {k}
    while i.operands:
        if i.opcode in ("dynamic-update-slice", "reshape", "bitcast", "convert"):
            i = i.operands[1 if i.opcode == "dynamic-update-slice" else 0]
        elif i.opcode == "get-tuple-element" and i.operands[0] is body.parameters[0]:
            if i.proto.tuple_index in seen:
                break
            seen.add(i.proto.tuple_index)  # a stack of the states themselves
            i = body.root.operands[i.proto.tuple_index]
        else:
            break
    return i


def _hands_on(body: Computation, k: int) -> bool:
    """Whether the body of a loop returns element k of its state unchanged."""
    if body.root.opcode != "tuple":
        return False
    i = body.root.operands[k]
    return (
        i.opcode == "get-tuple-element"
        and i.operands[0] is body.parameters[0]
        and i.proto.tuple_index == k
    )


def _renames(i: Instruction) -> bool:
    """Whether an instruction is its operand under another shape."""
    if i.opcode == "transpose":
        n, order = len(i.shape.dims), list(i.proto.dimensions)
        exchanged = [*range(n - 2), n - 1, n - 2]
        return order == exchanged and all(u.opcode in _TAKES_EXCHANGED for u in i.users)
    return i.opcode in ("bitcast", "broadcast", "reshape")


_TAKES_EXCHANGED = frozenset(("dot", "reshape", "transpose"))


def _fused(computation: Computation) -> set[int]:
    """Ids of the instructions that their users compute. See NOTE [the model of fusion]."""
    result: set[int] = set()
    for i in computation.instructions:
        if i.opcode not in _FUSES or i is computation.root:
            continue
        users = ["copy" if is_placement(u, DEVICE) else u.opcode for u in i.users]
        once = len(users) == 1 and users[0] != "broadcast"
        if _JOINS.issuperset(users) and (once or i.opcode not in opcodes.SLOW):
            result.add(i.id)
    return result
