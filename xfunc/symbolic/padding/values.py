"""The padding pass's knowledge about values, and its moves of values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from xfunc.hlo import Instruction
from xfunc.hlo import hlo_pb2 as pb
from xfunc.symbolic.interpolation import SymbolicModule
from xfunc.symbolic.padding.emit import S32, S64, Emitter, array, message
from xfunc.symbolic.padding.layouts import Factor, Layout, MaybeLayout, is_padded, own, split
from xfunc.symbolic.polynomial import Size, as_polynomial, product

_GATHER_NUMBERS, _GATHER_SIZES = 33, 34


class Inexact(Exception):
    """An instruction with a result that would differ from that of the exact shape.

    Attributes:
        reason: why.
        instruction: the instruction.
    """

    def __init__(self, reason: str, instruction: Instruction | None = None) -> None:
        super().__init__(reason)
        self.reason, self.instruction = reason, instruction


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedValue:
    """An array of the bucket's shape, with the exact one in it.

    Attributes:
        id: the instruction that computes it.
        element_type: XLA's number of its element type.
        dims: the bucket's shape.
        sizes: the exact shape.
        layouts: where in each dimension the exact elements are; see NOTE [factors].
        pad_values: by dimension, the value of all the padding along it, where known.
        const: the value of all elements, where known.
        nan_lines: like `pad_values`, but for lines along the dimension in which all elements are
            NaN; see NOTE [softmax].
    """

    id: int
    element_type: int
    dims: tuple[int, ...]
    sizes: tuple[Size, ...]
    layouts: tuple[MaybeLayout, ...]
    pad_values: Mapping[int, float] = dataclasses.field(default_factory=dict)
    const: float | None = None
    nan_lines: Mapping[int, float] = dataclasses.field(default_factory=dict)

    def own(self, d: int) -> Layout:
        """The layout of a dimension; if uniform, one with the padding at its end."""
        layout = self.layouts[d]
        return own(self.dims[d], self.sizes[d]) if layout is None else layout

    def padded(self, d: int) -> bool:
        """Whether there is padding in a dimension, uniform or not."""
        return is_padded(self.own(d))


State = PaddedValue | list["State"]  # an array, or a tuple


class Line(NamedTuple):
    """A reduction of a value along a dimension: a maximum, or a sum.

    Attributes:
        opcode: of the reduction.
        of: the id of the value.
        masked: the value as it was reduced.
        along: the dimension.
        at: for each dimension of the result, that of the value; None: there is none.
    """

    opcode: str
    of: int
    masked: PaddedValue
    along: int
    at: tuple[int | None, ...]

    def reshaped(self, have: Sequence[int], want: Sequence[int]) -> Line | None:
        """The same of a result to which a reshape added dimensions of 1; None: it did more."""
        if [n for n in have if n != 1] != [n for n in want if n != 1]:
            return None
        left = iter([d for d, n in zip(self.at, have, strict=True) if n != 1])
        return self._replace(at=tuple(None if n == 1 else next(left) for n in want))

    def fits(self, x: PaddedValue, other: PaddedValue) -> bool:
        """Whether `other` holds, at each element of a value, the reduction of its line."""
        at = [None if d == self.along else d for d in range(len(x.dims))]
        return self.of == x.id and x.dims == other.dims and [*self.at] == at


class _Move(NamedTuple):
    """How a value was made from another that has the same elements.

    Attributes:
        of: the other one.
        back: its dimensions to which those of the value belong.
        again: makes the same of another value.
    """

    of: PaddedValue
    back: Callable[[Sequence[int]], Sequence[int]]
    again: Callable[[PaddedValue], PaddedValue]


class Relayout:
    """Masks and moves of values in one computation.

    Args:
        emit: adds instructions to it.
        symbolic: the program.
        divided: whether values may be sharded over devices.
    """

    def __init__(self, emit: Emitter, symbolic: SymbolicModule, divided: bool = False) -> None:
        self.emit, self.symbolic, self._divided = emit, symbolic, divided
        self.lines: dict[int, Line] = {}  # by their holders
        self.pushed: dict[int, Callable[[Sequence[int]], PaddedValue]] = {}  # see NOTE [softmax]
        self._given = {i.id for i in emit.instructions}
        self._masked: dict[object, PaddedValue] = {}
        self._moves: dict[int, _Move] = {}  # by their results

    # -- masks --------------------------------------------------------------------------------

    def masked(
        self,
        x: PaddedValue,
        over: Sequence[int],
        fill: float,
        lines: bool = False,
        after: int | None = None,
    ) -> PaddedValue:
        """The value with `fill` in the padding along dimensions.

        Args:
            x: the value.
            over: the dimensions.
            fill: the value there.
            lines: all elements along these are used together, and one NaN makes the result NaN.
            after: an S32 scalar that is to be computed before the mask.
        """
        if x.const is not None and _same(x.const, fill):
            return x
        over = [d for d in over if x.padded(d) and not self._holds(x, d, fill, lines)]
        # A delayed value must not be used in code that does not wait.
        key = (x.id, tuple(over), repr(fill), after is not None)
        if over and key not in self._masked:
            self._masked[key] = self._with_fill(x, over, fill, lines, after)
        return self._masked[key] if over else x

    def masked_late(
        self, x: PaddedValue, over: Sequence[int], fill: float, lines: bool, other: PaddedValue
    ) -> PaddedValue:
        """The same for a value that is used together with another one, of a real type.

        NOTE [masked late]: XLA's CPU target computes whatever it can at once. So it would begin
        with the mask of a parameter, and keep the copy up to its use: in a backward pass, to the
        last step. The bounds of the mask are computed from the other value, which changes nothing.
        """
        if not self.is_given(x) or self._divided or not other.dims or 0 in other.dims:
            return self.masked(x, over, fill, lines)
        return self.masked(x, over, fill, lines, self._any_of(other))

    def is_given(self, x: PaddedValue) -> bool:
        """Whether a value is a parameter of the computation, possibly in another shape."""
        while x.id in self._moves:
            x = self._moves[x.id].of
        return x.id in self._given

    def _any_of(self, x: PaddedValue) -> int:
        """An S32 scalar that is computed from a value."""
        one = [1] * len(x.dims)
        first = self.emit.add("slice", x.element_type, one, [x.id])
        for _ in one:
            bounds = self.emit.instructions[-1].slice_dimensions.add()
            bounds.start, bounds.limit, bounds.stride = 0, 1, 1
        scalar = self.emit.add("reshape", x.element_type, (), [first])
        return self.emit.add("convert", S32, (), [scalar])

    def _holds(self, x: PaddedValue, d: int, fill: float, lines: bool) -> bool:
        if _same(x.pad_values.get(d), fill):
            return True
        box = self.symbolic.box
        # A line without elements has none that is NaN.
        return (
            lines
            and _same(x.nan_lines.get(d), fill)
            and all(box.at_most(1, f.valid) is True for f in x.own(d))
        )

    def _with_fill(
        self, x: PaddedValue, over: Sequence[int], fill: float, lines: bool, after: int | None
    ) -> PaddedValue:
        # NOTE [masked before it is moved]
        # XLA reads the operands of products through transposes and reshapes, but not through a
        # select, for which it would write the moved array as well.
        move = self._moves.get(x.id)
        if move is not None:
            result = move.again(self.masked(move.of, move.back(over), fill, lines, after))
            if all(self._holds(result, d, fill, lines) for d in over):
                return result
        push = self.pushed.pop(x.id, None)
        if push is not None and fill == 0 and x.nan_lines.keys().isdisjoint(over):
            return push(over)
        return self._select(x, over, self.emit.number(fill, x.element_type), fill, after)

    def note_move(
        self,
        moved: PaddedValue,
        of: PaddedValue,
        back: Callable[[Sequence[int]], Sequence[int]],
        again: Callable[[PaddedValue], PaddedValue],
    ) -> PaddedValue:
        """Record how a value was made from another that has the same elements; returns it."""
        self._moves[moved.id] = _Move(of, back, again)
        return moved

    def masked_by(self, x: PaddedValue, over: Sequence[int], scalar: PaddedValue) -> PaddedValue:
        """The same, with a scalar of the program as `fill`."""
        if scalar.const is not None:
            return self.masked(x, over, scalar.const)
        over = [d for d in over if x.padded(d)]
        return self._select(x, over, scalar.id, None) if over else x

    def _select(
        self,
        x: PaddedValue,
        over: Sequence[int],
        scalar: int,
        fill: float | None,
        after: int | None = None,
    ) -> PaddedValue:
        layouts = [x.own(d) for d in range(len(x.dims))]
        filling = self.emit.spread(scalar, x.dims, x.element_type)
        selects, id = list[int](), x.id
        # Not one mask: XLA would compute it before a loop, and keep it in memory.
        for d in over:
            mask = self.emit.mask(x.dims, layouts, [d], after)
            assert mask is not None
            id = self.emit.add("select", x.element_type, x.dims, [mask, id, filling])
            selects.append(id)
        as_before = all(x.layouts[d] is not None for d in over)
        known = (*x.pad_values.values(), *x.nan_lines.values())
        stands_in = (
            fill is not None and after is None and as_before and all(_same(v, fill) for v in known)
        )
        self.emit.note_mask(x.id, selects, repr(fill) if stands_in else None)
        pad_values, nan_lines = (
            {d: v for d, v in found.items() if fill is not None and _same(v, fill)}
            for found in (x.pad_values, x.nan_lines)
        )
        if fill is not None:
            pad_values |= dict.fromkeys(over, fill)
        layouts_now = tuple(layouts[d] if d in over else x.layouts[d] for d in range(len(x.dims)))
        return dataclasses.replace(
            x, id=id, layouts=layouts_now, pad_values=pad_values, nan_lines=nan_lines, const=None
        )

    # -- moves --------------------------------------------------------------------------------

    def take(self, x: PaddedValue, d: int, index: int, n: int) -> int:
        """``x[..., index, ...]`` along dimension d, for an S64[n] of positions in it."""
        dims = (*x.dims[:d], n, *x.dims[d + 1 :])
        index = self.emit.add("reshape", S64, (n, 1), [index])
        # XLA 2.9's partitioner ends the process on a gather along a sharded dimension.
        from_all = self.emit.on_all(x.id, x.element_type, x.dims) if self._divided else x.id
        made = pb.HloInstructionProto(opcode="gather", id=self.emit.new_id())
        made.name = f"gather.{made.id}"
        made.shape.CopyFrom(array(x.element_type, dims))
        made.operand_ids.extend([from_all, index])
        if self.emit.source is not None:
            made.metadata.CopyFrom(self.emit.source.metadata)
        others = [(1, k) for k in range(len(dims)) if k != d]
        numbers = message(*others, (2, d), (3, d), (4, 1))
        sizes = [(_GATHER_SIZES, 1 if k == d else m) for k, m in enumerate(x.dims)]
        made.MergeFromString(message((_GATHER_NUMBERS, numbers), *sizes))
        id = self.emit.put(made)
        return self.emit.on_all(id, x.element_type, dims) if self._divided else id

    def places(self, layout: Layout, n: int) -> int:
        """S64[n]: the exact shape's element at each position of a dimension."""
        emit, place, found = self.emit, self.emit.iota(n), None
        for k, f in enumerate(layout):
            rest = math.prod(g.size for g in layout[k + 1 :])
            digit = emit.binary("divide", place, self._all(rest, n), [n])
            digit = emit.binary("remainder", digit, self._all(f.size, n), [n])
            weight = self._all(product(g.valid for g in layout[k + 1 :]), n)
            digit = emit.binary("multiply", digit, weight, [n])
            found = digit if found is None else emit.binary("add", found, digit, [n])
        return emit.spread(emit.number(0), [n]) if found is None else found

    def at_places(self, layout: Layout, exact: int, n: int, size: int) -> int:
        """S64[n]: the position in a dimension of `size` of each element of the exact shape."""
        emit, found = self.emit, None
        for k, f in enumerate(layout):
            weight = self._all(product(g.valid for g in layout[k + 1 :]), n)
            digit = emit.binary("divide", exact, weight, [n])
            if k:
                digit = emit.binary("remainder", digit, self._all(f.valid, n), [n])
            rest = math.prod(g.size for g in layout[k + 1 :])
            digit = emit.binary("multiply", digit, self._all(rest, n), [n])
            found = digit if found is None else emit.binary("add", found, digit, [n])
        if found is None:
            return emit.spread(emit.number(0), [n])
        return emit.clamped(found, emit.number(size - 1), [n])

    def _all(self, size: Size, n: int) -> int:
        return self.emit.spread(self.emit.size(size), [n])

    def relaid(self, x: PaddedValue, d: int, layout: Layout, size: int) -> PaddedValue:
        """The value with another layout, and another size in the bucket, for one dimension."""
        have = x.layouts[d]
        if have == layout and x.dims[d] == size:
            return x
        if have is None and x.dims[d] == size:
            known = (*x.layouts[:d], layout, *x.layouts[d + 1 :])
            return dataclasses.replace(x, layouts=known)
        have = x.own(d)
        exact = self.places(layout, size)
        index = self.at_places(have, exact, size, x.dims[d])
        id = self.take(x, d, index, size)
        return PaddedValue(
            id,
            x.element_type,
            (*x.dims[:d], size, *x.dims[d + 1 :]),
            x.sizes,
            (*x.layouts[:d], layout, *x.layouts[d + 1 :]),
            {k: v for k, v in x.pad_values.items() if k != d},
            x.const,
        )

    def plain(self, x: PaddedValue, d: int) -> PaddedValue:
        """The value with the padding of a dimension at its end."""
        return self.relaid(x, d, own(x.dims[d], x.sizes[d]), x.dims[d])

    def alike(
        self, values: Sequence[PaddedValue], but: int | None = None
    ) -> tuple[list[PaddedValue], list[MaybeLayout]]:
        """Values of equal dimensions, given equal layouts, and these; except in dimension `but`."""
        values, found = list(values), []
        for d in range(len(values[0].dims)):
            if d == but:
                found.append(None)
                continue
            known = [v.layouts[d] for v in values if v.layouts[d] is not None]
            best = max(known, key=lambda layout: len(layout or ()), default=None)
            if best is not None:
                values = [
                    v if v.layouts[d] is None else self.relaid(v, d, best, v.dims[d])
                    for v in values
                ]
            found.append(best)
        return values, found

    def reshaped(
        self, x: PaddedValue, i: Instruction, dims: Sequence[int], sizes: Sequence[Size]
    ) -> PaddedValue:
        """The value as an array with other dimensions."""
        groups = list(_groups(x, dims, sizes))
        layouts: list[MaybeLayout] = [None] * len(dims)
        pad_values: dict[int, float] = {}
        nan_lines: dict[int, float] = {}
        moved: list[tuple[list[int], list[int], list[Layout]]] = []
        for old, new in groups:
            if all(x.layouts[d] is None for d in old):
                continue
            flat = [f for d in old for f in x.own(d)]
            dealt = split(flat, [(dims[d], sizes[d]) for d in new], self.symbolic.box)
            if dealt is None:
                dealt = [own(dims[d], sizes[d]) for d in new]
                moved.append((old, new, dealt))
            for d, layout in zip(new, dealt, strict=True):
                layouts[d] = layout
            if len(old) == len(new) == 1 and old[0] in x.pad_values:
                pad_values[new[0]] = x.pad_values[old[0]]
            if len(old) == len(new) == 1 and old[0] in x.nan_lines:
                nan_lines[new[0]] = x.nan_lines[old[0]]
            values = {repr(x.pad_values.get(d)) for d in old if x.padded(d)}
            if len(values) == 1 and not moved and values != {"None"}:
                value = next(x.pad_values[d] for d in old if x.padded(d))
                pad_values |= {d: value for d in new if is_padded(layouts[d])}
        source = x
        if moved:
            x = self._moved(x, groups, moved)
        id = self.emit.add("reshape", x.element_type, dims, [x.id])
        result = PaddedValue(
            id, x.element_type, tuple(dims), tuple(sizes), tuple(layouts), pad_values, x.const
        )
        if moved:
            return result
        result = dataclasses.replace(result, nan_lines=nan_lines)

        def back(over: Sequence[int]) -> list[int]:
            return [d for old, new in groups if not set(new).isdisjoint(over) for d in old]

        return self.note_move(result, source, back, lambda y: self.reshaped(y, i, dims, sizes))

    def _moved(
        self,
        x: PaddedValue,
        groups: Sequence[tuple[list[int], list[int]]],
        moved: Sequence[tuple[list[int], list[int], list[Layout]]],
    ) -> PaddedValue:
        """The value with each group of dimensions merged into one, in its new layout."""
        flat = [[f for d in old for f in x.own(d)] for old, _ in groups]
        dims = [math.prod(x.dims[d] for d in old) for old, _ in groups]
        sizes = [product(x.sizes[d] for d in old) for old, _ in groups]
        id = self.emit.add("reshape", x.element_type, dims, [x.id])
        result = PaddedValue(
            id, x.element_type, tuple(dims), tuple(sizes), tuple(map(tuple, flat)), {}, x.const
        )
        for k, (old, new) in enumerate(groups):
            for old_dims, new_dims, dealt in moved:
                if (old, new) == (old_dims, new_dims):
                    layout: list[Factor] = [f for part in dealt for f in part]
                    result = self.relaid(result, k, tuple(layout), dims[k])
        return result


def _groups(
    x: PaddedValue, dims: Sequence[int], sizes: Sequence[Size]
) -> Iterator[tuple[list[int], list[int]]]:
    """Dimensions, old and new, that hold the same elements, in the smallest possible groups."""
    old: list[int] = []
    new: list[int] = []
    a = b = 0
    while a < len(x.dims) or b < len(dims):
        have, want = (math.prod(x.dims[d] for d in old), math.prod(dims[d] for d in new))
        if (have <= want and a < len(x.dims)) or b == len(dims):
            old.append(a)
            a += 1
        else:
            new.append(b)
            b += 1
        same = math.prod(x.dims[d] for d in old) == math.prod(dims[d] for d in new)
        exact = as_polynomial(product(x.sizes[d] for d in old))
        if same and exact == product(sizes[d] for d in new):
            yield old, new
            old, new = [], []
    if old or new:
        yield old, new


def _same(a: float | None, b: float) -> bool:
    return a is not None and (a == b or (math.isnan(a) and math.isnan(b)))
