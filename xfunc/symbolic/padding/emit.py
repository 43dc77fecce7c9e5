"""Instructions that the padding pass adds to a computation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from xfunc.hlo import Shape
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import constant, instruction
from xfunc.hlo.spmd.annotations import SHARDING
from xfunc.symbolic.padding.layouts import Factor, Layout
from xfunc.symbolic.polynomial import Number, Polynomial, Ratio, Size, as_polynomial

S64 = Shape(torch.int64).element_type
S32 = Shape(torch.int32).element_type
PRED = Shape(torch.bool).element_type
F64 = Shape(torch.float64).element_type

_Mask = tuple[tuple[int, ...], str | None]
"""The selects of `Emitter.note_mask`, and their fill values."""


def array(element_type: int, dims: Sequence[int]) -> pb.ShapeProto:
    """The shape of an array, laid out row-major."""
    result = pb.ShapeProto()
    result.element_type = element_type  # pyright: ignore[reportAttributeAccessIssue]
    result.dimensions.extend(dims)
    result.is_dynamic_dimension.extend([False] * len(dims))
    result.layout.minor_to_major.extend(range(len(dims) - 1, -1, -1))
    result.layout.SetInParent()
    return result


def message(*fields: tuple[int, int | bytes]) -> bytes:
    """A protobuf message of integers and messages, by field number."""
    result = b""
    for number, x in fields:
        if isinstance(x, bytes):
            result += _varint(number << 3 | 2) + _varint(len(x)) + x
        else:
            result += _varint(number << 3) + _varint(x % (1 << 64))
    return result


def _varint(x: int) -> bytes:
    found = bytearray()
    while x > 0x7F:
        found.append(x & 0x7F | 0x80)
        x >>= 7
    return bytes((*found, x))


class Emitter:
    """Adds instructions to a computation, and computes nothing twice.

    Args:
        ids: unused ids.
        sizes: the actual sizes of the symbols, as scalars of the computation.
        computations: those made for the module, to which instructions may add.
    """

    def __init__(
        self,
        ids: Iterator[int],
        sizes: Mapping[str, int],
        computations: list[pb.HloComputationProto],
    ) -> None:
        self.computations = computations
        self.instructions: list[pb.HloInstructionProto] = []
        self.source: pb.HloInstructionProto | None = None  # the one that new ones help compute
        self._ids, self._sizes = ids, sizes
        self._scalars: dict[object, int] = {}
        self._masks: dict[object, int | None] = {}
        self._of_region: tuple[dict[object, int], dict[object, int | None]] = {}, {}
        self._masked: dict[int, list[_Mask]] = {}  # by value
        self._instead: dict[int, int] = {}

    @contextlib.contextmanager
    def in_region(self, sizes: Mapping[str, int]) -> Iterator[None]:
        """A block in a manual region of the computation, which shares no scalars and masks with it.

        Args:
            sizes: as `sizes` of the class, as the region has them.
        """
        outside = self._sizes, self._scalars, self._masks
        self._sizes, (self._scalars, self._masks) = sizes, self._of_region
        try:
            yield
        finally:
            self._sizes, self._scalars, self._masks = outside

    def add(
        self,
        opcode: str,
        element_type: int,
        dims: Sequence[int],
        operands: Sequence[int] = (),
        *,
        dimensions: Sequence[int] = (),
        direction: str = "",
    ) -> int:
        """Add a new instruction; returns its id."""
        shape = array(element_type, dims)
        made = instruction(opcode, next(self._ids), shape, operands, self.source)
        made.dimensions.extend(dimensions)
        if direction:
            made.comparison_direction = direction
        self.instructions.append(made)
        return made.id

    def put(self, proto: pb.HloInstructionProto) -> int:
        """Add an existing instruction."""
        self.instructions.append(proto)
        return proto.id

    def proto(self, id: int) -> pb.HloInstructionProto:
        """An instruction that was just added."""
        return next(i for i in reversed(self.instructions) if i.id == id)

    def new_id(self) -> int:
        """An unused id."""
        return next(self._ids)

    def on_all(self, x: int, element_type: int, dims: Sequence[int], manual: bool = False) -> int:
        """The value, whole on each device; if `manual`, each device's own."""
        made = instruction("custom-call", self.new_id(), array(element_type, dims), [x])
        made.custom_call_target = "SPMDFullToShardShape" if manual else SHARDING
        made.custom_call_api_version = 1  # API_VERSION_ORIGINAL
        made.sharding.type = pb.OpSharding.MANUAL if manual else pb.OpSharding.REPLICATED
        return self.put(made)

    # -- scalars ------------------------------------------------------------------------------

    def number(self, value: Number | float, element_type: int = S64) -> int:
        """A scalar constant."""
        key = ("number", repr(value), element_type)
        if key not in self._scalars:
            dtype = Shape.from_proto(array(element_type, ())).dtype
            made = constant(value, next(self._ids), dtype)  # pyright: ignore[reportArgumentType]
            self._scalars[key] = self.put(made)
        return self._scalars[key]

    def size(self, p: Size, element_type: int = S64) -> int:
        """A size, computed from the actual sizes."""
        key = (as_polynomial(p), element_type)
        if key not in self._scalars:
            self._scalars[key] = self._computed(as_polynomial(p), element_type)
        return self._scalars[key]

    def _computed(self, p: Polynomial, element_type: int) -> int:
        if p.is_constant:
            return self.number(p.at({}), element_type)
        if element_type != S64:
            return self.add("convert", element_type, (), [self.size(p)])
        # In whole numbers: terms with denominators are whole only when taken together.
        bottom = math.lcm(*(c.denominator for _, c in p.terms))
        total: int | None = None
        for m, c in p.terms:
            term = self.number(int(c * bottom))
            for name, e in m:
                for _ in range(e):
                    term = self.add("multiply", S64, (), [term, self._sizes[name]])
            total = term if total is None else self.add("add", S64, (), [total, term])
        assert total is not None
        return total if bottom == 1 else self.add("divide", S64, (), [total, self.number(bottom)])

    def ratio(self, r: Ratio, element_type: int) -> int:
        """A real number, computed from the actual sizes."""
        key = (r, element_type)
        if key not in self._scalars:
            top, bottom = (self._scaled(p) for p in (r.numerator, r.denominator))
            found = self.add("divide", F64, (), [top, bottom])
            if r.root:
                found = self.add("sqrt", F64, (), [found])
            if element_type != F64:
                found = self.add("convert", element_type, (), [found])
            self._scalars[key] = found
        return self._scalars[key]

    def _scaled(self, p: Polynomial) -> int:
        """A polynomial that need not be an integer, as a float."""
        bottom = math.lcm(*(c.denominator for _, c in p.terms))
        top = self.size(p * bottom, F64)
        return self.add("divide", F64, (), [top, self.number(float(bottom), F64)])

    def binary(self, opcode: str, a: int, b: int, dims: Sequence[int] = ()) -> int:
        """An operation on two int64 values of equal shape."""
        return self.add(opcode, S64, dims, [a, b])

    def spread(self, scalar: int, dims: Sequence[int], element_type: int = S64) -> int:
        """A scalar, broadcast."""
        return self.add("broadcast", element_type, dims, [scalar]) if dims else scalar

    def clamped(self, x: int, high: int, dims: Sequence[int] = ()) -> int:
        """An int64 value, at least 0 and then at most a scalar (which may be negative: then 0)."""
        high = self.binary("maximum", high, self.number(0))
        return self.add("clamp", S64, dims, [self.number(0), x, high])

    # -- masks --------------------------------------------------------------------------------

    def mask(
        self,
        dims: Sequence[int],
        layouts: Sequence[Layout],
        over: Sequence[int],
        after: int | None = None,
    ) -> int | None:
        """A mask of the exact shape's elements along the padded dimensions among `over`.

        None: all elements. `after`: an S32 scalar that is to be computed before it.
        """
        key = (tuple(dims), tuple((d, layouts[d]) for d in over), after)
        if key not in self._masks:
            self._masks[key] = self._mask(dims, layouts, over, after)
        return self._masks[key]

    def _mask(
        self,
        dims: Sequence[int],
        layouts: Sequence[Layout],
        over: Sequence[int],
        after: int | None,
    ) -> int | None:
        fine: list[Factor] = []
        for d, n in enumerate(dims):
            fine += layouts[d] if d in over and layouts[d] else [Factor(n, n)]
        sizes = [f.size for f in fine]
        result: int | None = None
        for place, f in enumerate(fine):
            if f.is_padded:
                inside = self.spread(self._below(f, after), sizes, PRED)
                self.instructions[-1].dimensions.append(place)
                both = [x for x in (result, inside) if x is not None]
                result = inside if result is None else self.add("and", PRED, sizes, both)
        if result is not None and sizes != list(dims):
            result = self.add("reshape", PRED, dims, [result])
        return result

    def note_mask(self, x: int, selects: Sequence[int], fill: str | None) -> None:
        """Record that a value was masked, by selects one after the other.

        `fill`: the fill value, if others may use the masked value.
        """
        self._masked.setdefault(x, []).append((tuple(selects), fill))

    def note_instead(self, x: int, other: int) -> None:
        """Record that all others may take a value in place of `x`."""
        self._instead[x] = other

    @property
    def count(self) -> int:
        """How many selects mask padding."""
        return sum(1 if _one(found) else len(found) for found in self._masked.values())

    def settled(self) -> list[pb.HloInstructionProto]:
        """All instructions, operands first.

        NOTE [one of the two]: where a value is masked for one use, the others take it masked as
        well. So only one of the two is written to memory, by the loop that computes it. If it is
        masked along other dimensions for another use, it is masked along all of them at once.
        """
        by_id = {i.id: i for i in self.instructions}
        given = ("parameter", "get-tuple-element")  # These are in memory already.
        instead = dict(self._instead)
        chained: set[int] = set()
        for x, masks in self._masked.items():
            if not _one(masks):
                continue
            selects = [by_id[k] for ids, _ in masks for k in ids]
            last = x
            for i in {i.operand_ids[0]: i for i in selects}.values():
                i.operand_ids[1], last = last, i.id
                chained.add(i.id)
            instead |= {i.id: last for i in selects if i.id != last}
            if by_id[x].opcode not in given:
                instead.setdefault(x, last)
        for i in self.instructions:
            if i.id not in chained and not instead.keys().isdisjoint(i.operand_ids):
                i.operand_ids[:] = [instead.get(x, x) for x in i.operand_ids]
        found: dict[int, pb.HloInstructionProto] = {}
        for first in by_id:
            todo = [first]
            while todo:
                i = by_id[todo[-1]]
                missing = [x for x in i.operand_ids if x not in found]
                todo += missing
                if not missing:
                    found[todo.pop()] = i
        return list(found.values())

    def _below(self, f: Factor, after: int | None) -> int:
        """PRED[f.size]: which elements are valid."""
        key = ("below", f, after)
        if key not in self._scalars:
            place = self.add("iota", S32, [f.size], dimensions=[0])  # 64 bits cost more on TPUs.
            end = self.size(f.valid, S32)
            if after is not None:
                end = self.add("clamp", S32, (), [end, after, end])
            end = self.spread(end, [f.size], S32)
            self._scalars[key] = self.add("compare", PRED, [f.size], [place, end], direction="LT")
        return self._scalars[key]

    def iota(self, n: int) -> int:
        """S64[n]: 0, 1, 2, ..."""
        return self.add("iota", S64, [n], dimensions=[0])


def _one(masks: Sequence[_Mask]) -> bool:
    """Whether a value's masks can be one: see `Emitter.note_mask`."""
    return len({fill for _, fill in masks}) == 1 and masks[0][1] is not None
