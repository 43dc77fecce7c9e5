"""Numbers in HLO, and arithmetic on them that is bitwise equal to XLA's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from xfunc.hlo import hlo_pb2 as pb

Number = Any
"""A scalar of NumPy."""

_KINDS: dict[int, tuple[type, str]] = {
    pb.PRED: (np.bool_, "preds"),
    pb.S32: (np.int32, "s32s"),
    pb.S64: (np.int64, "s64s"),
    pb.U32: (np.uint32, "u32s"),
    pb.U64: (np.uint64, "u64s"),
    pb.F32: (np.float32, "f32s"),
    pb.F64: (np.float64, "f64s"),
}
# Two bytes each. They are read as float32, which represents them exactly; none are computed.
_HALVES: dict[int, str] = {pb.BF16: "bf16s", pb.F16: "f16s"}
_ARITHMETIC = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "negate": np.negative,
}
_COMPARISONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def read(constant: pb.HloInstructionProto) -> Number | None:
    """The value of a constant; None if it is not a scalar, or of an unsupported type."""
    type = constant.shape.element_type
    kind = _KINDS.get(type)
    if constant.shape.dimensions:
        return None
    if type in _HALVES:
        return _read_half(getattr(constant.literal, _HALVES[type]), type)
    if kind is None:
        return None
    values = getattr(constant.literal, kind[1])
    return kind[0](values[0]) if len(values) == 1 else None


def write(number: Number, i: pb.HloInstructionProto) -> None:
    """Turn an instruction whose result is known into a constant."""
    shape = i.shape
    i.literal.shape.CopyFrom(shape)
    type = shape.element_type
    if type in _HALVES:
        setattr(i.literal, _HALVES[type], _half(number, type))
    else:
        getattr(i.literal, _KINDS[type][1]).append(number.item())
    i.opcode = "constant"
    i.ClearField("operand_ids")
    i.ClearField("dimensions")
    i.ClearField("comparison_direction")


def _read_half(bits: bytes, type: int) -> Number | None:
    if len(bits) != 2:
        return None
    if type == pb.F16:
        return np.frombuffer(bits, "<f2").astype(np.float32)[0]
    return (np.frombuffer(bits, "<u2").astype(np.uint32) << 16).view(np.float32)[0]


def _half(number: Number, type: int) -> bytes:
    if type == pb.F16:
        return np.array(number, "<f2").tobytes()
    return (np.array(number, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def computed(opcode: str, numbers: Sequence[Number], type: int) -> Number | None:
    """The result of an operation on numbers; None where XLA might differ, or if unsupported."""
    if type not in _KINDS:
        return None
    with np.errstate(all="ignore"):
        if opcode == "convert":
            (x,) = numbers
            if isinstance(x, np.floating) and not issubclass(_KINDS[type][0], np.floating):
                return None  # It may be out of range.
            return _sure(_KINDS[type][0](x))
        if opcode == "divide" and isinstance(numbers[0], np.floating):
            return _sure(np.divide(*numbers))
        if opcode in _ARITHMETIC and type != pb.PRED:
            return _sure(_ARITHMETIC[opcode](*numbers))
    return None


def compared(direction: str, a: Number, b: Number) -> Number | None:
    """How numbers compare; None for floats."""
    if isinstance(a, np.floating) or direction not in _COMPARISONS:
        return None
    return _COMPARISONS[direction](a, b)


def _sure(x: Number) -> Number | None:
    """The number, unless its treatment depends on processor settings."""
    if not _is_floating(x) or x == 0:
        return x
    least = float(np.finfo(x.dtype).tiny)
    return x if least <= abs(x) < np.inf else None


def _is_floating(x: Number) -> TypeGuard[np.floating[Any]]:
    return isinstance(x, np.floating)


# -- types ----------------------------------------------------------------------------------------

# Bits of a number's significand, and for floats also of its exponent.
_SIGNED: dict[int, int] = {pb.S8: 7, pb.S16: 15, pb.S32: 31, pb.S64: 63}
_UNSIGNED: dict[int, int] = {pb.U8: 8, pb.U16: 16, pb.U32: 32, pb.U64: 64}
FLOATS: dict[int, tuple[int, int]] = {
    pb.F16: (11, 5),
    pb.BF16: (8, 8),
    pb.F32: (24, 8),
    pb.F64: (53, 11),
}


def holds_all(type: int, of: int) -> bool:
    """Whether a type holds all numbers of another one exactly."""
    if of == pb.PRED:
        return type in _SIGNED or type in _UNSIGNED or type in FLOATS
    if of in FLOATS:
        own = FLOATS.get(type, (0, 0))
        return all(a >= b for a, b in zip(own, FLOATS[of], strict=True))
    digits = _SIGNED.get(of) or _UNSIGNED.get(of)
    if digits is None:
        return False
    if of in _UNSIGNED and type in _UNSIGNED:
        return _UNSIGNED[type] >= digits
    own = FLOATS[type][0] if type in FLOATS else _SIGNED.get(type, 0)
    return own >= digits
