"""Complex logarithms, roots and powers, for which XLA assumes identities of real numbers.

XLA's algebraic simplifier replaces ``log(exp(z))`` by `z`, ``sqrt(z * z)`` by ``abs(z)`` and
``exp(z) ** w`` by ``exp(z * w)``, whatever the imaginary part of `z`. Here the imaginary part of a
logarithm is computed separately; its real part is right in any case. Roots and powers are computed
as the conjugate of those of the conjugate, which is equal and not recognised by the simplifier.

XLA of jaxlib (0.7.1 to 0.10.2) ignores the sign of a zero: its root of -1 - 0i is that of -1 + 0i.
So the sign of the imaginary part of a root is taken from the operand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import constant, fill, instruction

_PARTS = {pb.C64: (pb.F32, torch.float32), pb.C128: (pb.F64, torch.float64)}
_BITS = {pb.C64: (pb.S32, torch.int32), pb.C128: (pb.S64, torch.int64)}
_BRANCHED = frozenset(("log", "sqrt", "rsqrt", "power"))


def keep_branches(contents: Contents) -> None:
    """Keep complex logarithms, roots and powers on their branch, in place."""
    for c, branched in contents.everywhere(_BRANCHED):
        chosen = {i.id for i in branched if i.shape.element_type in _PARTS}
        if not chosen:
            continue
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            if i.id not in chosen:
                made.append(i)
            elif i.opcode == "log":
                made += _Steps(i, contents.ids).logarithm()
            else:
                made += _Steps(i, contents.ids).conjugated()
        fill(c, made)
        contents.changed(c)


class _Steps:
    """The instructions that replace one; the last has its id."""

    def __init__(self, i: pb.HloInstructionProto, ids: Iterator[int]) -> None:
        self._i, self._ids = i, ids
        self._part, self._dtype = _PARTS[i.shape.element_type]
        self._made: list[pb.HloInstructionProto] = []

    def logarithm(self) -> list[pb.HloInstructionProto]:
        (z,) = self._i.operand_ids
        size = self._add("real", self._function(self._i.operand_ids))
        angle = self._add("atan2", self._add("imag", z), self._add("real", z))
        return self._end(size, angle)

    def conjugated(self) -> list[pb.HloInstructionProto]:
        found = self._function([self._conjugate(z) for z in self._i.operand_ids])
        imaginary = self._add("imag", found)
        if self._i.opcode == "power":
            # The conjugate of a conjugate cancels, and the root would again be one of a power.
            minus_zero = self._filled(-0.0, self._dtype, self._part)
            signed = self._add("subtract", minus_zero, imaginary)
        else:
            (z,) = self._i.operand_ids
            sign = self._add("imag", z)
            if self._i.opcode == "rsqrt":
                sign = self._add("negate", sign)
            signed = self._with_sign(imaginary, sign)
        return self._end(self._add("real", found), signed)

    def _with_sign(self, x: int, sign: int) -> int:
        """The size of one number with the sign of another."""
        bits, dtype = _BITS[self._i.shape.element_type]
        lowest = self._filled(torch.iinfo(dtype).min, dtype, bits)
        x = self._add("bitcast-convert", self._add("abs", x), element_type=bits)
        sign = self._add("bitcast-convert", sign, element_type=bits)
        sign = self._add("and", sign, lowest, element_type=bits)
        return self._add("bitcast-convert", self._add("or", x, sign, element_type=bits))

    def _function(self, operands: Iterable[int]) -> int:
        return self._add(self._i.opcode, *operands, element_type=self._i.shape.element_type)

    def _conjugate(self, z: int) -> int:
        real, negated = self._add("real", z), self._add("negate", self._add("imag", z))
        return self._add("complex", real, negated, element_type=self._i.shape.element_type)

    def _filled(self, value: float, dtype: torch.dtype, element_type: pb.PrimitiveType) -> int:
        scalar = constant(value, next(self._ids), dtype, of=self._i)
        self._made.append(scalar)
        return self._add("broadcast", scalar.id, element_type=element_type)

    def _add(
        self, opcode: str, *operands: int, element_type: pb.PrimitiveType | None = None
    ) -> int:
        i = self._i
        made = instruction(opcode, next(self._ids), i.shape, operands, of=i)
        made.shape.element_type = self._part if element_type is None else element_type
        if i.HasField("sharding"):
            made.sharding.CopyFrom(i.sharding)
        self._made.append(made)
        return made.id

    def _end(self, real: int, imaginary: int) -> list[pb.HloInstructionProto]:
        self._add("complex", real, imaginary, element_type=self._i.shape.element_type)
        last = self._made[-1]
        last.id, last.name = self._i.id, f"complex.{self._i.id}"
        return self._made
