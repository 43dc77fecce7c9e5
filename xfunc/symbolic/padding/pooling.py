"""The padding pass's rule for the gradient of max pooling."""

from __future__ import annotations

from xfunc.hlo import Instruction
from xfunc.symbolic.padding.rules import result
from xfunc.symbolic.padding.values import Inexact, PaddedValue, Relayout


def select_and_scatter(m: Relayout, i: Instruction, operands: list[PaddedValue]) -> PaddedValue:
    """Exact where windows do not extend along padded dimensions."""
    x, source, start = operands
    numbers = m.symbolic.sizes(i, "window")
    for d in range(len(x.dims)):
        # Of `Numbers.lists`; none: the window is a single element.
        plain = not numbers or numbers[7 * d : 7 * d + 6] == (1, 1, 0, 0, 1, 1)
        if x.padded(d) and not plain:
            raise Inexact(f"{i.opcode} along a dimension of size {x.sizes[d]}", i)
        if x.padded(d) and x.own(d) != source.own(d):
            source = m.relaid(source, d, x.own(d), source.dims[d])
    return result(m, i, [x.id, source.id, start.id], x.layouts)


RULES = {"select-and-scatter": select_and_scatter}
