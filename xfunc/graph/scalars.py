"""Arithmetic on the numbers of constants that is bitwise equal to XLA's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
import torch

Number = Any
"""A scalar of NumPy."""

_KINDS: dict[torch.dtype, type] = {
    torch.bool: np.bool_,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.uint32: np.uint32,
    torch.uint64: np.uint64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}
# float32 represents them exactly; none are computed.
_HALVES = frozenset((torch.bfloat16, torch.float16))
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


def number(value: float, dtype: torch.dtype) -> Number | None:
    """The number of a scalar constant; None if its type is not supported."""
    if dtype in _HALVES:
        return np.float32(value)
    kind = _KINDS.get(dtype)
    return None if kind is None else kind(value)


def computed(opcode: str, numbers: Sequence[Number], dtype: torch.dtype) -> Number | None:
    """The result of an operation on numbers; None where XLA might differ, or if unsupported."""
    kind = _KINDS.get(dtype)
    if kind is None:
        return None
    with np.errstate(all="ignore"):
        if opcode == "convert":
            (x,) = numbers
            if isinstance(x, np.floating) and not issubclass(kind, np.floating):
                return None  # It may be out of range.
            return _sure(kind(x))
        if opcode == "divide" and isinstance(numbers[0], np.floating):
            return _sure(np.divide(*numbers))
        if opcode in _ARITHMETIC and dtype is not torch.bool:
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
_SIGNED = {torch.int8: 7, torch.int16: 15, torch.int32: 31, torch.int64: 63}
_UNSIGNED = {torch.uint8: 8, torch.uint16: 16, torch.uint32: 32, torch.uint64: 64}
FLOATS: dict[torch.dtype, tuple[int, int]] = {
    torch.float16: (11, 5),
    torch.bfloat16: (8, 8),
    torch.float32: (24, 8),
    torch.float64: (53, 11),
}


def holds_all(dtype: torch.dtype, of: torch.dtype) -> bool:
    """Whether a dtype holds all numbers of another one exactly."""
    if of is torch.bool:
        return dtype in _SIGNED or dtype in _UNSIGNED or dtype in FLOATS
    if of in FLOATS:
        own = FLOATS.get(dtype, (0, 0))
        return all(a >= b for a, b in zip(own, FLOATS[of], strict=True))
    digits = _SIGNED.get(of) or _UNSIGNED.get(of)
    if digits is None:
        return False
    if of in _UNSIGNED and dtype in _UNSIGNED:
        return _UNSIGNED[dtype] >= digits
    own = FLOATS[dtype][0] if dtype in FLOATS else _SIGNED.get(dtype, 0)
    return own >= digits
