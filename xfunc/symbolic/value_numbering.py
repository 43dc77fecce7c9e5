"""Equality of programs up to their treatment of dimensions of size 1.

NOTE [dimensions of size 1]: where a dimension has size 1, torch reshapes instead of broadcasting,
omits a transpose or a slice, and so on. So the HLO at a small size is often not literally the one
for all sizes. Here both are numbered by value: two instructions have one number if they surely
compute the same elements in row-major order. A reshape, a broadcast that repeats nothing, and a
transpose that only moves dimensions of size 1 have the number of their operand; operations on each
element know their operands by number only, products also the dimensions that are not 1; everything
else knows all dimensions. Equal numbers are a proof, different ones are none.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from xfunc.graph.opcodes import COLLECTIVES, ELEMENTWISE, ENCODINGS, ONCE
from xfunc.hlo import Computation, Instruction, Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.symbolic.numbers import Numbers, digits, is_close, scalar_of

Lists = Mapping[str, tuple[Any, ...]]

_PER_ELEMENT = ELEMENTWISE | ENCODINGS
_COUNTED = ONCE | COLLECTIVES | {"custom-call"}  # both programs must run them equally often


class Array(NamedTuple):
    """The value of an array.

    Attributes:
        number: the same for equal elements in row-major order.
        dims: of the array.
    """

    number: int
    dims: tuple[int, ...]


Value = Any
"""An `Array`, or a tuple of values."""


class Table:
    """The numbers of values, for the programs to be compared."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._floats: dict[int, list[float]] = collections.defaultdict(list)

    def number(self, *key: object) -> int:
        """The number of a value that a key describes."""
        return self._numbers.setdefault(key, len(self._numbers))

    def scalar(self, element_type: int, x: float) -> int:
        """The number of a constant with one element; floats are equal up to rounding."""
        if digits(element_type):
            known = self._floats[element_type]
            same = (
                k
                for k, y in enumerate(known)
                if is_close(x, y, element_type) and math.copysign(1, x) == math.copysign(1, y)
            )
            k = next(same, len(known))
            if k == len(known):
                known.append(x)
            return self.number("float", element_type, k)
        return self.number("constant", element_type, x)


class ProgramValues:
    """The values of a program.

    Args:
        module: the HLO.
        numbers: of its instructions by id; the lists in them are replaced by `lists`.
        lists: by the id of an instruction, its numbers that may depend on sizes.
        table: of all programs that are compared.
    """

    def __init__(
        self,
        module: Module,
        numbers: Mapping[int, Numbers],
        lists: Mapping[int, Lists],
        table: Table,
    ) -> None:
        self._numbers, self._lists, self._table = numbers, lists, table
        self._known: dict[int, Value] = {}  # of computations
        self._counts: collections.Counter[object] = collections.Counter()
        self._by_id = {c.id: c for c in module.computations}
        self.result = self._computation(module.entry)

    @property
    def key(self) -> object:
        """Equal for programs that surely compute the same."""
        return self.result, frozenset(self._counts.items())

    def _computation(self, c: Computation) -> Value:
        if c.id not in self._known:
            values: dict[int, Value] = {}
            for i in c.instructions:  # operands first
                operands = [values[k] for k in i.proto.operand_ids]
                values[i.id] = self._value(i, operands)
            self._known[c.id] = values[c.root.id]
        return self._known[c.id]

    def _value(self, i: Instruction, operands: list[Value]) -> Value:
        lists, shape, opcode = self._lists[i.id], i.proto.shape, i.opcode
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element" and type(operands[0]) is tuple:
            return operands[0][i.proto.tuple_index]
        if shape.element_type == pb.TUPLE:
            return _parts(self, self._generic(i, operands), shape, iter(lists["dims"]))
        dims = tuple(lists["dims"])
        if 0 in dims:
            return Array(self._table.number("empty", shape.element_type), dims)
        rule = _RULES.get(opcode)
        number = rule(self, i, operands, lists) if rule is not None else None
        if number is None and opcode in _PER_ELEMENT:
            _, _, _, unknown, stated = self._numbers[i.id].rest
            kind = shape.element_type
            number = self._table.number(kind, unknown, stated, *[x.number for x in operands])
        return Array(self._generic(i, operands) if number is None else number, dims)

    def _generic(self, i: Instruction, operands: Sequence[Value]) -> int:
        types, _, _, unknown, stated = self._numbers[i.id].rest
        called = tuple(self._computation(self._by_id[k]) for k in i.proto.called_computation_ids)
        lists = tuple(sorted(self._lists[i.id].items()))
        key = (str(types), unknown, stated, called, lists, tuple(operands))
        if i.opcode in _COUNTED or i.proto.control_predecessor_ids:
            self._counts[key] += 1
        return self._table.number(*key)

    def stated_without(self, i: Instruction, field: str) -> object:
        """The type of an instruction and its parts that are equal at all sizes, but for a field."""
        _, _, _, unknown, stated = self._numbers[i.id].rest
        others = pb.HloInstructionProto.FromString(stated)
        others.ClearField(field)
        return i.proto.shape.element_type, unknown, others.SerializeToString(deterministic=True)

    def scalar(self, element_type: int, x: float) -> int:
        """See `Table.scalar`."""
        return self._table.scalar(element_type, x)

    def number(self, *key: object) -> int:
        """See `Table.number`."""
        return self._table.number(*key)


def _parts(p: ProgramValues, number: int, shape: pb.ShapeProto, dims: Any, *path: int) -> Value:
    """The elements of a tuple, by their positions in the value with a number."""
    if shape.element_type == pb.TUPLE:
        return tuple(_parts(p, number, s, dims, *path, k) for k, s in enumerate(shape.tuple_shapes))
    own = tuple(next(dims) for _ in shape.dimensions)
    return Array(p.number("element", number, *path), own)


def _constant(p: ProgramValues, i: Instruction, operands: list[Value], lists: Lists) -> int | None:
    kind, dims = i.proto.shape.element_type, lists["dims"]
    if "literal" in lists:
        return p.scalar(kind, lists["literal"][0])
    if "progression" in lists:
        start, step = lists["progression"]
        return p.scalar(kind, start) if dims == (1,) else p.number(kind, start, step, *dims)
    if math.prod(dims) == 1:
        alone = pb.HloInstructionProto()
        alone.CopyFrom(i.proto)
        alone.shape.ClearField("dimensions")
        x = scalar_of(alone)
        return None if x is None else p.scalar(kind, x)
    return None


def _reshape(p: ProgramValues, i: Instruction, operands: list[Value], lists: Lists) -> int:
    return operands[0].number


def _broadcast(p: ProgramValues, i: Instruction, operands: list[Value], lists: Lists) -> int:
    (x,) = operands
    origin = {d: q for q, d in enumerate(i.proto.dimensions) if x.dims[q] != 1}
    large = [(n, origin.get(d)) for d, n in enumerate(lists["dims"]) if n != 1]
    if not origin:
        count = math.prod(n for n, _ in large)
        return x.number if count == 1 else p.number("splat", x.number, count)
    order = [q for _, q in large]
    if None not in order and order == sorted(origin.values()):
        return x.number
    places = {q: k for k, q in enumerate(sorted(origin.values()))}
    key = tuple((n, None if q is None else places[q]) for n, q in large)
    return p.number("broadcast", x.number, key)


def _transpose(p: ProgramValues, i: Instruction, operands: list[Value], lists: Lists) -> int:
    (x,) = operands
    order = [q for q in i.proto.dimensions if x.dims[q] != 1]
    if order == sorted(order):
        return x.number
    places = {q: k for k, q in enumerate(sorted(order))}
    key = tuple((x.dims[q], places[q]) for q in order)
    return p.number("transpose", x.number, key)


def _slice(p: ProgramValues, i: Instruction, operands: list[Value], lists: Lists) -> int:
    (x,) = operands
    cuts = _by_threes(lists["slice"])
    large = tuple((n, cut) for n, cut in zip(x.dims, cuts, strict=True) if n != 1)
    if all(cut == (0, n, 1) for n, cut in large):
        return x.number
    return p.number("slice", x.number, large)


def _iota(p: ProgramValues, i: Instruction, operands: list[Value], lists: Lists) -> int:
    kind, dims, along = i.proto.shape.element_type, lists["dims"], i.proto.dimensions[0]
    if dims[along] == 1:
        zero, count = p.scalar(kind, 0), math.prod(dims)
        return zero if count == 1 else p.number("splat", zero, count)
    large = tuple((n, d == along) for d, n in enumerate(dims) if n != 1)
    return p.number("iota", kind, large)


def _dot(p: ProgramValues, i: Instruction, operands: list[Value], lists: Lists) -> int:
    """Where a dimension of size 1 is a batch dimension, contracted or neither, is all the same."""
    roles = i.proto.dot_dimension_numbers
    sides = [_dims_without_ones(x) for x in operands]
    (_, left), (_, right) = sides
    batch = zip(roles.lhs_batch_dimensions, roles.rhs_batch_dimensions, strict=True)
    contracted = zip(
        roles.lhs_contracting_dimensions, roles.rhs_contracting_dimensions, strict=True
    )
    shared = [(left[a], right[b]) for a, b in batch if a in left]
    summed = sorted((left[a], right[b]) for a, b in contracted if a in left)
    values = [(x.number, dims) for x, (dims, _) in zip(operands, sides, strict=True)]
    key = p.stated_without(i, "dot_dimension_numbers")
    return p.number("dot", key, *values, tuple(shared), tuple(summed))


def _dims_without_ones(x: Array) -> tuple[tuple[int, ...], dict[int, int]]:
    """The dimensions that are not 1, and where among them each one is, by its position in all."""
    large = [d for d, n in enumerate(x.dims) if n != 1]
    return tuple(x.dims[d] for d in large), {d: k for k, d in enumerate(large)}


def _by_threes(x: Iterable[int]) -> list[tuple[int, ...]]:
    numbers = list(x)
    return [tuple(numbers[k : k + 3]) for k in range(0, len(numbers), 3)]


_RULES = {
    "constant": _constant,
    "copy": _reshape,
    "dot": _dot,
    "reshape": _reshape,
    "broadcast": _broadcast,
    "transpose": _transpose,
    "slice": _slice,
    "iota": _iota,
}
