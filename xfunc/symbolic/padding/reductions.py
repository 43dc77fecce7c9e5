"""The padding pass's rules for reductions and products."""

from __future__ import annotations

import math

from xfunc.hlo import Instruction
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.shape import Shape
from xfunc.symbolic.padding.rules import UNSIGNED, Rule, is_float, result, results
from xfunc.symbolic.padding.values import Line, PaddedValue, Relayout, State


def neutral(opcode: str, element_type: int) -> float | None:
    """The neutral element of an operation on pairs."""
    low, high = _extremes(element_type)
    return {
        "add": 0,
        "or": 0,
        "xor": 0,
        "multiply": 1,
        "and": 1 if element_type == pb.PRED else -1,
        "maximum": low,
        "minimum": high,
    }.get(opcode)


def _extremes(element_type: int) -> tuple[float | None, float | None]:
    if element_type == pb.PRED:
        return 0, 1
    if is_float(element_type):
        return -math.inf, math.inf
    if element_type in (pb.C64, pb.C128):
        return None, None
    bits = Shape.from_proto(pb.ShapeProto(element_type=element_type)).bytes * 8  # type: ignore[arg-type]
    if element_type in UNSIGNED:
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def applied(i: Instruction) -> str:
    """The operation on pairs that a reduction or the like applies; "" if it is not a single one."""
    computation = i.called_computations[-1]
    root = computation.root
    if root.opcode == "tuple" or len(computation.instructions) != 3:
        return ""
    return root.opcode


def reduce(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> State:
    """The operand is padded with the neutral element."""
    half = len(operands) // 2
    over = list(i.proto.dimensions)
    arrays, _ = m.alike(operands[:half])
    opcode = applied(i) if half == 1 else ""
    pad_values: dict[int, float] = {}
    for k, (x, start) in enumerate(zip(arrays, operands[half:], strict=True)):
        fill = neutral(opcode, x.element_type)
        if fill is None:
            arrays[k] = m.masked_by(x, over, start)
        else:
            floats = is_float(x.element_type) and opcode in ("add", "maximum")
            arrays[k] = m.masked(x, over, fill, lines=floats)
        kept = [d for d in range(len(x.dims)) if d not in over]
        if fill is not None and start.const == fill:
            pad_values = {new: fill for new, d in enumerate(kept) if _holds(arrays[k], d, fill)}
    _, layouts = m.alike(arrays)
    left = [layout for d, layout in enumerate(layouts) if d not in over]
    ids = [*(x.id for x in arrays), *(x.id for x in operands[half:])]
    result = results(m, i, ids, left, pad_values)
    whole = neutral(opcode, i.shape.element_type) if not i.shape.is_tuple else None
    if (
        isinstance(result, PaddedValue)
        and len(over) == 1
        and operands[1].const == whole is not None
    ):
        at = tuple(d for d in range(len(arrays[0].dims)) if d not in over)
        m.lines[result.id] = Line(opcode, operands[0].id, arrays[0], over[0], at)
    return result


def _holds(x: PaddedValue, d: int, fill: float) -> bool:
    return x.pad_values.get(d) == fill


def dot(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """Contracted dimensions are padded with 0 in both operands."""
    a, b = operands
    numbers = i.proto.dot_dimension_numbers
    left_sum, right_sum = (
        [*numbers.lhs_contracting_dimensions],
        [*numbers.rhs_contracting_dimensions],
    )
    left_batch, right_batch = [*numbers.lhs_batch_dimensions], [*numbers.rhs_batch_dimensions]
    pairs = zip([*left_batch, *left_sum], [*right_batch, *right_sum], strict=True)
    for p, q in pairs:
        if a.layouts[p] is None and b.layouts[q] is None:
            continue
        if a.layouts[p] is None:
            a = m.relaid(a, p, b.own(q), a.dims[p])
        else:
            b = m.relaid(b, q, a.own(p), b.dims[q])
    lines = is_float(a.element_type) and is_float(b.element_type)
    if not lines:
        a, b = m.masked(a, left_sum, 0), m.masked(b, right_sum, 0)
    elif m.is_given(a) and not m.is_given(b):
        b = m.masked(b, right_sum, 0, lines)
        a = m.masked_late(a, left_sum, 0, lines, b)
    else:
        a = m.masked(a, left_sum, 0, lines)
        b = m.masked_late(b, right_sum, 0, lines, a)
    layouts = [a.layouts[p] for p in left_batch]
    layouts += [x for d, x in enumerate(a.layouts) if d not in (*left_batch, *left_sum)]
    layouts += [x for d, x in enumerate(b.layouts) if d not in (*right_batch, *right_sum)]
    return result(m, i, [a.id, b.id], layouts)


RULES: dict[str, Rule] = {"reduce": reduce, "dot": dot}
