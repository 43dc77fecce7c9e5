"""Functions that reach their limits: the hyperbolic tangent and the error function.

XLA's code for the CPU stops a few units before 1, or not, depending on the dtype, on optimisation
and on the operations around: 0.9999998 for the tangent of 100. A formula such as ``1 - tanh(x)``
or ``inf * (1 - tanh(x) ** 2)`` makes that a large error.
"""

from __future__ import annotations

from collections.abc import Iterator

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import constant, fill, fresh_ids, instruction, with_id
from xfunc.hlo.shape import Shape

_FLOATING = (pb.F32, pb.BF16, pb.F16)

# From where on the result rounds to 1.
_ENDS = {
    **{("tanh", t): 9.0109134 for t in _FLOATING},
    **{("erf", t): 3.9192059 for t in _FLOATING},
    ("tanh", pb.F64): 19.061548,
}


def saturate_tanh(proto: pb.HloModuleProto) -> None:
    """Replace ``tanh`` and ``erf`` by ``x < -end ? -1 : x > end ? 1 : f(x)``, in place."""
    ids = fresh_ids(proto)
    for c in proto.computations:
        if any((i.opcode, i.shape.element_type) in _ENDS for i in c.instructions):
            fill(c, [made for i in c.instructions for made in _limited(i, ids)])


def _limited(i: pb.HloInstructionProto, ids: Iterator[int]) -> Iterator[pb.HloInstructionProto]:
    end = _ENDS.get((i.opcode, i.shape.element_type))
    if end is None:
        yield i
        return
    dtype, truth = Shape.from_proto(i.shape).dtype, pb.ShapeProto()
    truth.CopyFrom(i.shape)
    truth.element_type = pb.PRED
    found = with_id(i, next(ids))
    yield found
    for sign, direction in ((1, "GT"), (-1, "LT")):
        parts: list[int] = []
        for value in (sign * end, sign):
            scalar = constant(value, next(ids), dtype, of=i)
            yield scalar
            parts.append(next(ids))
            yield instruction("broadcast", parts[-1], i.shape, [scalar.id], of=i)
        bound, limit = parts
        beyond = instruction("compare", next(ids), truth, [i.operand_ids[0], bound], of=i)
        beyond.comparison_direction = direction
        yield beyond
        chosen = with_id(i, i.id if sign < 0 else next(ids))
        chosen.opcode = "select"
        chosen.operand_ids[:] = [beyond.id, limit, found.id]
        yield chosen
        found = chosen
