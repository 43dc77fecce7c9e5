"""The buffers of a program on one chip, from XLA's description of its memory layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from xfunc.core.sizes import size
from xfunc.hlo import Module, wire
from xfunc.hlo.module import Instruction

_HBM, _HOST = 0, 5  # the numbers of memory spaces, in XLA's layouts
_NOT_TEMPORARY = (3, 5, 7, 12)  # fields: thread-local, parameter, result, constant


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A piece of memory that one chip uses, and the largest value in it.

    Attributes:
        bytes: its size.
        kind: ``"argument"``, ``"result"``, ``"temporary"``, or ``"host"`` for the host's memory.
        shape: the value's, as HLO writes it: ``bf16[8,128]``.
        name: the argument's, or that of the instruction that makes the value.
        op_name: the scopes and the operation that the value comes from; empty if unknown.
        file: the user's; empty if unknown.
        line: in this file.
    """

    bytes: int
    kind: str
    shape: str
    name: str
    op_name: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        what = self.name if self.kind == "argument" else self.op_name or self.name
        where = f" at {self.file}:{self.line}" if self.file else ""
        return f"{size(self.bytes)} {self.kind} {self.shape} {what}{where}"


def temporary_bytes(assignment: bytes) -> int:
    """The bytes of the chip's HBM that hold temporaries.

    Args:
        assignment: XLA's ``BufferAssignmentProto`` of the program.
    """
    return sum(
        wire.integer(allocation, 2)
        for allocation in map(wire.fields, wire.fields(assignment).get(3, ()))
        if wire.integer(allocation, 8) == _HBM
        and not any(wire.integer(allocation, k) for k in _NOT_TEMPORARY)
    )


def largest_buffers(
    module: Module, assignment: bytes, arguments: Sequence[str], n: int
) -> list[Buffer]:
    """The n largest buffers, the largest first.

    Values that use the same memory one after another count once, as the largest of them.

    Args:
        module: the optimised program.
        assignment: XLA's ``BufferAssignmentProto`` of it.
        arguments: names of the parameters.
        n: how many at most.
    """
    found = sorted(_buffers(module, assignment, arguments), key=lambda b: -b.bytes)
    return found[:n]


def _buffers(module: Module, assignment: bytes, arguments: Sequence[str]) -> Iterator[Buffer]:
    fields = wire.fields(assignment)
    values = {wire.integer(v, 1): v for v in map(wire.fields, fields.get(1, ()))}
    for allocation in map(wire.fields, fields.get(3, ())):
        space = wire.integer(allocation, 8)
        is_local, is_constant = wire.integer(allocation, 3), wire.integer(allocation, 12)
        if is_local or is_constant or space not in (_HBM, _HOST):
            continue
        if wire.integer(allocation, 5):
            k = wire.integer(allocation, 6)
            shape = str(module.entry.parameters[k].shape)
            yield Buffer(wire.integer(allocation, 2), "argument", shape, arguments[k])
        else:
            kind = "result" if wire.integer(allocation, 7) else "temporary"
            yield from _values(module, allocation, values, "host" if space == _HOST else kind)


def _values(
    module: Module, allocation: wire.Fields, values: dict[int, wire.Fields], kind: str
) -> Iterator[Buffer]:
    lying = []
    for assigned in map(wire.fields, allocation.get(9, ())):
        defined = wire.message(values[wire.integer(assigned, 1)], 3)
        maker = module.instruction(wire.integer(defined, 4))
        place = wire.integer(assigned, 2), wire.integer(assigned, 3)
        lying.append((*place, maker, wire.integers(defined, 3)))
    lying.sort(key=lambda x: -x[1])
    taken: list[tuple[int, int]] = []
    for start, n, maker, index in lying:
        if any(start < end and begin < start + n for begin, end in taken):
            continue
        taken.append((start, start + n))
        shape = maker.shape
        for k in index:
            shape = shape.elements[k]
        # The same value may be made, become part of a loop's state, and be updated.
        same = [i for at, m, i, _ in lying if (at, m) == (start, n)]
        said = next(_with_a_line(same), maker).proto.metadata
        at = said.op_name, said.source_file, said.source_line
        yield Buffer(n, kind, str(shape), maker.name, *at)


def _with_a_line(makers: Iterable[Instruction]) -> Iterator[Instruction]:
    """The given instructions with a known line, then their neighbours with one."""
    makers = list(makers)
    near = [j for i in makers for j in (*i.users, *i.operands)]
    return (i for i in (*makers, *near) if i.proto.metadata.source_file)
