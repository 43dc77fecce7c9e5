"""Padding between elements, as XLA's partitioner computes it rightly.

Where every device has the whole array and the result is divided, the partitioner puts elements in
wrong places, by GSPMD and by Shardy, and where elements are cropped before the first, a check ends
the process (jaxlib 0.7.1 to 0.12; JAX's `lax.pad` is as wrong). A new dimension with padding at its
end, which is then merged, says the same and is right. Such pads are the gradients of slices with
steps, and put the halves of an `associative_scan` together.
"""

from __future__ import annotations

from collections.abc import Iterator

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import wire, write
from xfunc.hlo.edit import fill, fresh_ids, instruction
from xfunc.hlo.shape import Shape

_PADDING = 21  # the field of an instruction, by XLA's proto
_Edges = list[tuple[int, int, int]]


def pad_between_by_merging(proto: pb.HloModuleProto) -> None:
    """Let no instruction pad between elements, in place."""
    ids = fresh_ids(proto)
    for c in proto.computations:
        padding = {i.id: _edges(i) for i in c.instructions if i.opcode == "pad"}
        padding = {k: e for k, e in padding.items() if any(between for _, _, between in e)}
        if not padding:
            continue
        shapes = {i.id: i.shape for i in c.instructions}
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            if i.id in padding:
                made += _steps(i, padding[i.id], shapes[i.operand_ids[0]], ids)
            else:
                made.append(i)
        fill(c, made)


def _edges(i: pb.HloInstructionProto) -> _Edges:
    """How much padding is before, after and between the elements of each dimension."""
    dims = wire.message(wire.fields(i.SerializeToString()), _PADDING)[1]
    numbers = map(wire.fields, dims)
    return [(wire.integer(n, 1), wire.integer(n, 2), wire.integer(n, 3)) for n in numbers]


def _steps(
    i: pb.HloInstructionProto, edges: _Edges, given: pb.ShapeProto, ids: Iterator[int]
) -> Iterator[pb.HloInstructionProto]:
    """A pad in steps: new dimensions, padding at their ends, merging, and padding at the edges."""
    sizes = [*given.dimensions]
    between = [inner if n > 1 else 0 for n, (_, _, inner) in zip(sizes, edges, strict=True)]
    operand, fill_value = i.operand_ids
    if any(between):
        pairs = [*zip(sizes, between, strict=True)]
        apart = [k for n, inner in pairs for k in ((n, 1) if inner else (n,))]
        ends = [e for _, k in pairs for e in (((0, 0, 0), (0, k, 0)) if k else ((0, 0, 0),))]
        padded = [n + high for n, (_, high, _) in zip(apart, ends, strict=True)]
        merged = [n * (1 + inner) for n, inner in pairs]
        new = instruction(
            "reshape", next(ids), Shape.from_proto(given).with_dims(apart).proto, [operand], of=i
        )
        yield new
        of_ends = [new.id, fill_value]
        new = instruction(
            "pad", next(ids), Shape.from_proto(given).with_dims(padded).proto, of_ends, of=i
        )
        new.MergeFromString(write.padding(ends))
        yield new
        new = instruction(
            "reshape", next(ids), Shape.from_proto(given).with_dims(merged).proto, [new.id], of=i
        )
        yield new
        operand = new.id
    last = pb.HloInstructionProto()
    last.CopyFrom(i)
    last.DiscardUnknownFields()
    last.operand_ids[0] = operand
    outer = zip(edges, between, strict=True)
    last.MergeFromString(write.padding((low, high - inner, 0) for (low, high, _), inner in outer))
    yield last
