"""Products with operands that keep the dimensions which torch merges.

For ``x @ w`` with rows in several dimensions, such as batch and sequence, torch merges these, and
divides the result. Where another than the first is sharded, the merged dimension has no sharding
that a partitioner can express, and it gathers rows on every device. A product of HLO takes them as
they are. Others stay merged: libtpu needs less memory for them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import NamedTuple

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import fill, fresh_ids, instruction, with_id
from xfunc.hlo.shape import Shape

_Instruction = pb.HloInstructionProto
_Dims = tuple[int, ...]


def keep_rows_apart(proto: pb.HloModuleProto) -> None:
    """Multiply rows in the dimensions that they had before they were merged, in place."""
    divided = {lead for c in proto.computations for i in c.instructions for lead in _divided(i)}
    if not divided:
        return
    ids = fresh_ids(proto)
    for c in proto.computations:
        if any(i.opcode == "dot" for i in c.instructions):
            fill(c, _Apart(c, ids, divided).instructions())


def _divided(i: _Instruction) -> Iterator[_Dims]:
    """The leading dimensions of an array if one after the first is sharded."""
    if i.sharding.type != pb.OpSharding.OTHER:
        return
    dims, tiles = tuple(i.shape.dimensions), i.sharding.tile_assignment_dimensions
    for n in range(2, len(dims)):
        if math.prod(tiles[1:n]) > 1:
            yield dims[:n]


class _Apart:
    def __init__(
        self, c: pb.HloComputationProto, ids: Iterator[int], divided: Collection[_Dims]
    ) -> None:
        self._computation, self._ids, self._divided = c, ids, divided
        self._by_id = {i.id: i for i in c.instructions}
        self._made: list[_Instruction] = []
        self._products: dict[int, int] = {}  # by merged products, those of rows apart

    def instructions(self) -> list[_Instruction]:
        """Those of the computation, with products of rows apart."""
        for i in self._computation.instructions:
            if i.opcode == "dot":
                i = self._product(i)
            elif i.opcode == "reshape":
                i.operand_ids[0] = self._products.get(i.operand_ids[0], i.operand_ids[0])
            self._made.append(i)
        return self._made

    def _product(self, i: _Instruction) -> _Instruction:
        d = i.dot_dimension_numbers
        left, right = (self._by_id[k] for k in i.operand_ids)
        if d.lhs_batch_dimensions or len(left.shape.dimensions) != 2:
            return i
        summed, other = list(d.lhs_contracting_dimensions), list(d.rhs_contracting_dimensions)
        turned = left.opcode == "transpose" and list(left.dimensions) == [1, 0]
        if other == [0] and summed == [1 if turned else 0]:
            g = self._merged(self._by_id[left.operand_ids[0]] if turned else left)
            x = self._merged(right)
            if g is not None and x is not None and g.lead == x.lead:
                i.operand_ids[:] = [self._rows(g), self._rows(x)]
                d.lhs_contracting_dimensions[:] = range(len(g.lead))
                d.rhs_contracting_dimensions[:] = range(len(x.lead))
                return i
        rows = self._merged(left) if summed == [1] else None
        if rows is None:
            return i
        made = with_id(i, next(self._ids))
        made.shape.CopyFrom(
            Shape.from_proto(i.shape).with_dims([*rows.lead, *i.shape.dimensions[1:]]).proto
        )
        made.operand_ids[0] = self._rows(rows)
        made.dot_dimension_numbers.lhs_contracting_dimensions[:] = [len(rows.lead)]
        self._made.append(made)
        self._products[i.id] = made.id
        return instruction("reshape", i.id, i.shape, [made.id], of=i)

    def _merged(self, i: _Instruction) -> _Merged | None:
        """A matrix with rows in several sharded dimensions, in its original shape."""
        if i.opcode != "reshape" or len(i.shape.dimensions) != 2:
            return None
        whole, (rows, features) = self._by_id[i.operand_ids[0]], i.shape.dimensions
        dims = tuple(whole.shape.dimensions)
        for n in range(2, len(dims)):
            if (math.prod(dims[:n]), math.prod(dims[n:])) == (rows, features):
                return _Merged(whole, dims[:n], features) if dims[:n] in self._divided else None
        return None

    def _rows(self, rows: _Merged) -> int:
        """The id of rows apart, whose features are merged."""
        dims = [*rows.lead, rows.features]
        if list(rows.whole.shape.dimensions) == dims:
            return rows.whole.id
        shape = Shape.from_proto(rows.whole.shape).with_dims(dims).proto
        made = instruction("reshape", next(self._ids), shape, [rows.whole.id], of=rows.whole)
        self._made.append(made)
        return made.id


class _Merged(NamedTuple):
    """A matrix with rows from several dimensions.

    Attributes:
        whole: its original shape.
        lead: the dimensions of the rows.
        features: the size of a row.
    """

    whole: _Instruction
    lead: _Dims
    features: int
