"""The padding pass's rules for elementwise operations, moves, and operations along dimensions."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xfunc.hlo import Instruction
from xfunc.hlo import hlo_pb2 as pb
from xfunc.symbolic.numbers import scalar_of
from xfunc.symbolic.padding.emit import S64
from xfunc.symbolic.padding.layouts import MaybeLayout, own
from xfunc.symbolic.padding.values import Inexact, PaddedValue, Relayout, State
from xfunc.symbolic.polynomial import Polynomial, Ratio, Size

Rule = Callable[[Relayout, Instruction, list[PaddedValue]], State]

ELEMENTWISE = frozenset(
    "abs add and atan2 cbrt ceil clamp compare complex convert copy cosine count-leading-zeros "
    "divide erf exponential exponential-minus-one floor imag is-finite log log-plus-one logistic "
    "map maximum minimum multiply negate not or popcnt power real reduce-precision remainder "
    "round-nearest-afz round-nearest-even rsqrt select shift-left shift-right-arithmetic "
    "shift-right-logical sign sine sqrt subtract tan tanh xor".split()
)


# Cheap operations: more is known about their results than that they depend on no size.
LIGHT = ELEMENTWISE | {"constant", "iota", "broadcast", "reshape", "transpose"}


def remade(m: Relayout, i: Instruction, operands: Sequence[int]) -> int:
    """The instruction itself, with other operands."""
    made = pb.HloInstructionProto()
    made.CopyFrom(i.proto)
    made.id = m.emit.new_id()
    made.name = f"{i.opcode}.{made.id}"
    made.operand_ids[:] = operands
    del made.control_predecessor_ids[:]
    return m.emit.put(made)


def result(
    m: Relayout,
    i: Instruction,
    operands: Sequence[int],
    layouts: Sequence[MaybeLayout],
    pad_values: Mapping[int, float] | None = None,
    const: float | None = None,
) -> PaddedValue:
    """The instruction with other operands, as a value."""
    id = remade(m, i, operands)
    return PaddedValue(
        id,
        i.shape.element_type,
        i.shape.dims,
        m.symbolic.dims(i),
        tuple(layouts),
        pad_values or {},
        const,
    )


def results(
    m: Relayout,
    i: Instruction,
    ids: Sequence[int],
    layouts: Sequence[MaybeLayout],
    pad_values: Mapping[int, float] | None = None,
) -> State:
    """The instruction with other operands: an array, or a tuple of arrays of equal dimensions."""
    if not i.shape.is_tuple:
        return result(m, i, ids, layouts, pad_values)
    id = remade(m, i, ids)
    sizes = iter(m.symbolic.dims(i))
    found: list[State] = []
    for k, shape in enumerate(i.shape.elements):
        element = m.emit.add("get-tuple-element", shape.element_type, shape.dims, [id])
        m.emit.instructions[-1].tuple_index = k
        exact: tuple[Size, ...] = tuple(next(sizes) for _ in shape.dims)
        found.append(PaddedValue(element, shape.element_type, shape.dims, exact, tuple(layouts)))
    return found


# -- constants ------------------------------------------------------------------------------------


def constant(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """A number computed from the actual sizes, where it depends on them."""
    kind = i.shape.element_type
    value = m.symbolic.literal(i)
    if isinstance(value, (Polynomial, Ratio)):
        if isinstance(value, Polynomial):
            id = m.emit.size(value, kind)
        else:
            id = m.emit.ratio(value, kind)
        return PaddedValue(id, kind, (), (), ())
    steps = m.symbolic.sizes(i, "progression")
    if any(isinstance(s, Polynomial) for s in steps):
        (n,) = i.shape.dims
        start, step = (m.emit.spread(m.emit.size(s), [n]) for s in steps)
        found = m.emit.binary("multiply", m.emit.iota(n), step, [n])
        found = m.emit.binary("add", found, start, [n])
        if kind != S64:
            found = m.emit.add("convert", kind, [n], [found])
        return PaddedValue(found, kind, (n,), m.symbolic.dims(i), (own(n, m.symbolic.dims(i)[0]),))
    number = scalar_of(i.proto)
    layouts = [own(n, s) for n, s in zip(i.shape.dims, m.symbolic.dims(i), strict=True)]
    return result(m, i, (), layouts, const=number)


def iota(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """It counts from the first element, whatever the sizes."""
    layouts: list[MaybeLayout] = [None] * len(i.shape.dims)
    k = i.proto.dimensions[0]
    layouts[k] = own(i.shape.dims[k], m.symbolic.dims(i)[k])
    return result(m, i, (), layouts)


def broadcast(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """The result is uniform along the new dimensions."""
    (x,) = operands
    layouts: list[MaybeLayout] = [None] * len(i.shape.dims)
    pad_values = {}
    for q, d in enumerate(i.proto.dimensions):
        layouts[d] = x.layouts[q]
        if q in x.pad_values:
            pad_values[d] = x.pad_values[q]
    found = result(m, i, [x.id], layouts, pad_values, x.const)
    nan_lines = {d: x.nan_lines[q] for q, d in enumerate(i.proto.dimensions) if q in x.nan_lines}
    if line := m.lines.get(x.id):
        at: list[int | None] = [None] * len(i.shape.dims)
        for q, d in enumerate(i.proto.dimensions):
            at[d] = line.at[q]
        m.lines[found.id] = line._replace(at=tuple(at))
    return dataclasses.replace(found, nan_lines=nan_lines)


# -- element by element ---------------------------------------------------------------------------

_KNOWN: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "add": lambda a, b: a + b,
    "and": lambda a, b: a & b if isinstance(a, int) and isinstance(b, int) else math.nan,
    "convert": lambda a: a,
    "copy": lambda a: a,
    "exponential": lambda a: 0.0 if a == -math.inf else 1.0 if a == 0 else math.nan,
    "maximum": max,
    "minimum": min,
    "multiply": lambda a, b: a * b,
    "negate": lambda a: -a,
    "sqrt": lambda a: a if a in (0, 1) else math.nan,
    "subtract": lambda a, b: a - b,
}
_SIMPLE = (0, 1, -1, math.inf, -math.inf)  # common to the arithmetic of all types


def elementwise(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """All operands need the same layout."""
    dims, nan_lines = i.shape.dims, _softened(m, i, operands)
    given = operands
    if i.opcode == "subtract" and nan_lines:
        operands = [m.lines[operands[1].id].masked, operands[1]]
    arrays = [x for x in operands if x.dims == dims]
    moved, layouts = m.alike(arrays)
    rest = iter(moved)
    operands = [next(rest) if x.dims == dims else x for x in operands]
    pad_values = {}
    for d in range(len(dims)):
        known = [x.pad_values.get(d, x.const) for x in operands]
        value = _known(i, known)
        if value is not None:
            pad_values[d] = value
    const = _known(i, [x.const for x in operands])
    found = result(m, i, [x.id for x in operands], layouts, pad_values, const)
    found = dataclasses.replace(
        found, nan_lines={d: v for d, v in nan_lines.items() if d not in pad_values}
    )
    _note_softmax(m, i, given, found)
    zero = _zero_at(i, operands)
    if zero is not None and not found.nan_lines:
        m.pushed[found.id] = functools.partial(_zeroed, m, i, operands, found, zero)
    return found


# NOTE [masks of operands] XLA computes a mask again wherever its result is read element by element,
# and so keeps the value without the mask as well. It does not recompute the operand of a slow
# function. So the operand of such a function is masked, with the number at which the function is 0.
_ZERO_AT = {
    **dict.fromkeys("cbrt erf exponential-minus-one log-plus-one sine sqrt tan tanh".split(), 0.0),
    **dict.fromkeys(("exponential", "logistic"), -math.inf),
}


def _zero_at(i: Instruction, operands: Sequence[PaddedValue]) -> float | None:
    """A number for the first operand at which the result is surely 0."""
    if not is_float(i.shape.element_type):
        return None
    if i.opcode in ("maximum", "minimum") and operands[1].const == 0:  # relu
        return 0.0
    return _ZERO_AT.get(i.opcode)


def _zeroed(
    m: Relayout,
    i: Instruction,
    operands: Sequence[PaddedValue],
    found: PaddedValue,
    zero: float,
    over: Sequence[int],
) -> PaddedValue:
    """The value with 0 in the padding: see NOTE [masks of operands]."""
    first, *others = operands
    made = elementwise(m, i, [m.masked(first, over, zero), *others])
    m.emit.note_instead(found.id, made.id)
    return dataclasses.replace(made, pad_values={**made.pad_values, **dict.fromkeys(over, 0.0)})


def _softened(m: Relayout, i: Instruction, operands: Sequence[PaddedValue]) -> dict[int, float]:
    """The known padding of an elementwise operation's result, by NOTE [softmax].

    NOTE [softmax]: with -inf in the padding, ``exp(x - max(x))`` has 0 there, unless the maximum is
    infinite or NaN: but then all elements along that line are NaN, or the padding is 0 after all.
    The same holds once they are divided by their sum, which is 0 only if all of them are. If such a
    line is summed or contracted, the result is NaN, as it would be without the padding.

    If whole lines are to be 0, they are made so from the start: with -inf for x, and 0 and 1 for
    the maximum and the sum. A mask of the result would be one more array in memory.
    """
    first, *others = operands
    if not others and i.opcode in ("exponential", "convert", "copy"):
        known = {d: _known(i, [v]) for d, v in first.nan_lines.items()}
        both = is_float(first.element_type) and is_float(i.shape.element_type)
        return {d: v for d, v in known.items() if v is not None and both}
    line = m.lines.get(others[0].id) if len(others) == 1 else None
    if line is None or not line.fits(first, others[0]):
        return {}
    if (i.opcode, line.opcode) == ("subtract", "maximum"):
        return (
            {line.along: -math.inf} if line.masked.pad_values.get(line.along) == -math.inf else {}
        )
    # An exponential, which is never negative.
    of_sum = (i.opcode, line.opcode) == ("divide", "add") and first.id in m.pushed
    return {line.along: 0.0} if of_sum and first.nan_lines.get(line.along) == 0 else {}


def _note_softmax(
    m: Relayout, i: Instruction, operands: Sequence[PaddedValue], found: PaddedValue
) -> None:
    """Record how a value is made with 0 in whole lines; see NOTE [softmax]."""
    if not found.nan_lines or i.opcode not in ("subtract", "exponential", "divide"):
        return
    first, *others = operands

    def push(over: Sequence[int]) -> PaddedValue:
        if i.opcode == "subtract":
            x = m.masked(first, [*found.nan_lines, *over], -math.inf)
            made = elementwise(m, i, [x, m.masked(others[0], over, 0)])
        elif i.opcode == "exponential":
            made = elementwise(m, i, [source(over)])
        else:
            made = elementwise(m, i, [source(over), m.masked(others[0], over, 1)])
            made = dataclasses.replace(made, pad_values=dict.fromkeys(over, 0.0))
        m.emit.note_instead(found.id, made.id)
        return dataclasses.replace(made, nan_lines=found.nan_lines)

    source = m.pushed.get(first.id, push)
    if i.opcode == "subtract" or source is not push:
        m.pushed[found.id] = push


def _known(i: Instruction, operands: Sequence[float | None]) -> float | None:
    """The operation's result for numbers, if it is simple enough to compute here."""
    rule = _KNOWN.get(i.opcode)
    if rule is None or any(x is None or x not in _SIMPLE for x in operands):
        return None
    value = rule(*operands)
    if i.opcode == "convert" and math.isinf(value) and not is_float(i.shape.element_type):
        return None
    if i.opcode == "convert" and i.shape.element_type in (pb.C64, pb.C128):
        return None
    if i.shape.element_type in UNSIGNED and value < 0:
        return None
    return value if value in _SIMPLE else None


UNSIGNED = (pb.U8, pb.U16, pb.U32, pb.U64, pb.PRED)
_FLOATS = (pb.F16, pb.BF16, pb.F32, pb.F64)


def is_float(element_type: int) -> bool:
    """Whether an element type is of real floating-point numbers."""
    return element_type in _FLOATS


# -- moves ----------------------------------------------------------------------------------------


def reshape(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """See `Relayout.reshaped`."""
    (x,) = operands
    result = m.reshaped(x, i, i.shape.dims, m.symbolic.dims(i))
    line = x.id in m.lines and m.lines[x.id].reshaped(x.dims, result.dims)
    if line:
        m.lines[result.id] = line
    return result


def transpose(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """The dimensions in another order."""
    (x,) = operands
    order = list(i.proto.dimensions)
    pad_values = {d: x.pad_values[q] for d, q in enumerate(order) if q in x.pad_values}
    found = result(m, i, [x.id], [x.layouts[q] for q in order], pad_values, x.const)
    nan_lines = {d: x.nan_lines[q] for d, q in enumerate(order) if q in x.nan_lines}
    found = dataclasses.replace(found, nan_lines=nan_lines)
    return m.note_move(
        found, x, lambda over: [order[d] for d in over], lambda y: transpose(m, i, [y])
    )


def reverse(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """The padding would move to the front, so positions are computed."""
    (x,) = operands
    turned = []
    for d in i.proto.dimensions:
        if x.layouts[d] is None:
            continue
        if not x.padded(d):
            turned.append(d)
            continue
        n = x.dims[d]
        x = m.plain(x, d)
        last = m.emit.spread(m.emit.size(x.sizes[d] - 1), [n])
        index = m.emit.binary("subtract", last, m.emit.iota(n), [n])
        index = m.emit.clamped(index, m.emit.number(n - 1), [n])
        kept = {k: v for k, v in x.pad_values.items() if k != d}
        x = dataclasses.replace(x, id=m.take(x, d, index, n), pad_values=kept, nan_lines={})
    if not turned:
        return x
    id = m.emit.add("reverse", x.element_type, x.dims, [x.id], dimensions=turned)
    return dataclasses.replace(x, id=id)


# -- operations along some dimensions -------------------------------------------------------------


def along(dims: Callable[[Instruction, list[PaddedValue]], Sequence[int]]) -> Rule:
    """A rule for operations that are exact unless one of these dimensions is padded."""

    def rule(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> State:
        for d in dims(i, operands):
            if any(x.padded(d) for x in operands):
                raise Inexact(f"{i.opcode} along a dimension of size {operands[0].sizes[d]}", i)
        moved, layouts = m.alike(operands)
        return results(m, i, [x.id for x in moved], layouts)

    return rule


def _last(n: int) -> Callable[[Instruction, list[PaddedValue]], Sequence[int]]:
    return lambda i, operands: range(len(operands[0].dims) - n, len(operands[0].dims))


def fft(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> State:
    """Exact along dimensions that are not transformed."""
    n = len(i.proto.fft_length)
    (x,) = operands
    for d in range(len(x.dims) - n, len(x.dims)):
        if x.padded(d):
            raise Inexact(f"fft along a dimension of size {x.sizes[d]}", i)
    return result(m, i, [x.id], [*x.layouts[:-n], *(own(k, k) for k in i.shape.dims[-n:])])


def triangular_solve(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> State:
    """Exact for batches of matrices of one size."""
    a, b = operands
    n = len(a.dims)
    if any(x.padded(d) for x in (a, b) for d in range(n - 2, n)):
        raise Inexact("triangular-solve of matrices of a size that varies", i)
    pairs = zip(a.layouts[: n - 2], b.layouts[: n - 2], strict=True)
    if any(p != q and None not in (p, q) for p, q in pairs):
        raise Inexact("triangular-solve of batches that lie differently", i)
    return result(m, i, [a.id, b.id], [p or q for p, q in zip(a.layouts, b.layouts, strict=True)])


def bitcast_convert(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> State:
    """Element by element between dtypes of one width; others have a dimension more or less."""
    if len(operands[0].dims) != len(i.shape.dims):
        raise Inexact("bitcast-convert between dtypes of different widths", i)
    return elementwise(m, i, operands)


RULES: dict[str, Rule] = {
    "bitcast-convert": bitcast_convert,
    "constant": constant,
    "iota": iota,
    "broadcast": broadcast,
    "reshape": reshape,
    "transpose": transpose,
    "reverse": reverse,
    "cholesky": along(_last(2)),
    "fft": fft,
    "triangular-solve": triangular_solve,
    **dict.fromkeys(ELEMENTWISE, elementwise),
}
