"""Elementwise operations."""

from __future__ import annotations

import math

import torch

from xfunc.errors import UnsupportedOpError, fail
from xfunc.graph import build
from xfunc.graph.node import Node
from xfunc.ops.emit import instruction, loop
from xfunc.ops.registry import composition, is_twice, kernel
from xfunc.rules.operands import is_inexact, is_integer, result_type

Tensor = torch.Tensor

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(x: Tensor) -> Tensor:
    """The bits of floating numbers as integers of the same size."""
    return instruction(build.bitcast_convert, x, dtype=_BITS[x.dtype.itemsize])


def from_bits(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The floating numbers with these bits."""
    return instruction(build.bitcast_convert, x, dtype=dtype)


def together(*xs: Tensor | complex) -> list[Tensor]:
    """Tensors of one shape and dtype. The dispatcher passes numbers on as numbers."""
    return _as(result_type(xs), *xs)


def floating(*xs: Tensor | complex) -> list[Tensor]:
    """As `together`, in a floating or complex dtype: that of the numbers, or else the default."""
    dtype = result_type(xs)
    if not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.get_default_dtype()
    return _as(dtype, *xs)


def _as(dtype: torch.dtype, *xs: Tensor | complex) -> list[Tensor]:
    device = next(x for x in xs if isinstance(x, Tensor)).device
    tensors = [x.to(dtype) if isinstance(x, Tensor) else number(x, dtype, device) for x in xs]
    return list(torch.broadcast_tensors(*tensors))


def number(x: complex, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A 0-d array; integers wrap around, as in torch."""
    if not dtype.is_signed and dtype is not torch.bool and not isinstance(x, complex):
        x = int(x) % 256
    return torch.full((), x, dtype=dtype, device=device)


def _shift(x: Node, by: Node, opcode: str) -> Node:
    return build.binary(opcode, x, by)


def _integers(name: str, *xs: Tensor | int) -> list[Tensor]:
    made = together(*xs)
    dtype = made[0].dtype
    if not is_integer(dtype):
        # XLA would generate code that crashes the process.
        fail(
            UnsupportedOpError,
            f"torch.{name} was given {str(dtype).removeprefix('torch.')}, but it shifts integers",
            "convert with .to(torch.int64) first.",
        )
    return made


@kernel("__lshift__.Scalar", "__lshift__.Tensor", "bitwise_left_shift.Tensor")
def left_shift(x: Tensor, by: Tensor | int) -> Tensor:
    x, by = _integers("bitwise_left_shift", x, by)
    return instruction(_shift, x, by, opcode="shift-left")


@kernel("__rshift__.Scalar", "__rshift__.Tensor", "bitwise_right_shift.Tensor")
def right_shift(x: Tensor, by: Tensor | int) -> Tensor:
    x, by = _integers("bitwise_right_shift", x, by)
    opcode = "shift-right-arithmetic" if x.dtype.is_signed else "shift-right-logical"
    return instruction(_shift, x, by, opcode=opcode)


@kernel("signbit")
def signbit(x: Tensor) -> Tensor:
    return as_bits(x) < 0 if x.is_floating_point() else x < 0


@kernel("copysign.Tensor")
def copysign(x: Tensor, y: Tensor) -> Tensor:
    x, y = floating(x, y)
    return torch.where(torch.signbit(y), -x.abs(), x.abs())


@composition("copysign.Tensor", when=is_twice)
def copysign_by_factor(x: Tensor, y: Tensor) -> Tensor:
    # torch's slope is a quotient by x, whose own slope is 0 but for rounding.
    x, y = floating(x, y)
    at_zero = torch.copysign(x.detach(), y.detach())
    differ = torch.signbit(x.detach()) != torch.signbit(y.detach())
    return torch.where(x == 0, at_zero, torch.where(differ, -x, x))


@kernel("ldexp.Tensor")
def ldexp(x: Tensor, other: Tensor) -> Tensor:
    # Releases before 2.13 multiply by a power, which may overflow, and never come here.
    if not x.is_floating_point() or other.is_floating_point() or other.is_complex():
        dtype = result_type((x, other))
        dtype = dtype if is_inexact(dtype) else torch.get_default_dtype()
        return x.to(dtype) * torch.pow(2.0, other).to(dtype)
    if other.dtype is torch.bool:
        fail(
            UnsupportedOpError,
            "torch.ldexp was given a bool as the exponent",
            "convert to another dtype (x.int()).",
        )
    wide = x.float() if x.dtype.itemsize < 4 else x
    width, most = (23, 127) if wide.dtype is torch.float32 else (52, 1023)
    rest = other.to(torch.int32)  # torch wraps longer integers around
    for _ in range(3):  # from the least subnormal number to the largest
        step = rest.clamp(1 - most, most)
        power = from_bits((step.to(_BITS[wide.dtype.itemsize]) + most) << width, wide.dtype)
        wide, rest = wide * power, rest - step
    return wide.to(x.dtype)


@kernel("nextafter")
def nextafter(x: Tensor, y: Tensor) -> Tensor:
    x, y = floating(x, y)
    bits = as_bits(x)
    away = (y > x) == (x > 0)
    least = from_bits(torch.ones_like(bits), x.dtype)
    moved = from_bits(torch.where(away, bits + 1, bits - 1), x.dtype)
    moved = torch.where(x == 0, torch.copysign(least, y), moved)
    return torch.where(x == y, y, torch.where(x.isnan() | y.isnan(), x + y, moved))


@kernel("frexp.Tensor")
def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa and exponent; float32 is wide enough for the half-precision dtypes."""
    y = x.float() if x.dtype.itemsize < 4 else x
    width, low = (23, 8) if y.dtype is torch.float32 else (52, 11)
    small = (y.abs() < torch.finfo(y.dtype).tiny) & (y != 0)
    y = torch.where(small, y * 2.0 ** (width + 1), y)
    bits, ones = as_bits(y), (1 << low) - 1
    bias = (1 << (low - 1)) - 2
    exponent = ((bits >> width) & ones) - bias - torch.where(small, width + 1, 0)
    mantissa = from_bits((bits & ~(ones << width)) | (bias << width), y.dtype)
    plain = y.isfinite() & (y != 0)
    mantissa = torch.where(plain, mantissa, y).to(x.dtype)
    return mantissa, torch.where(plain, exponent, 0).to(torch.int32)


@kernel("exp2")
def exp2(x: Tensor) -> Tensor:
    (x,) = floating(x)
    return torch.pow(torch.full_like(x, 2.0), x)  # exact for whole numbers


@kernel("hypot")
def hypot(x: Tensor, y: Tensor) -> Tensor:
    x, y = (v.abs() for v in floating(x, y))
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = small / torch.where(large == 0, 1, large)
    found = large * torch.sqrt(1 + ratio * ratio)
    return torch.where(x.isinf() | y.isinf(), math.inf, found)


@kernel("fmax")
def fmax(x: Tensor, y: Tensor) -> Tensor:
    x, y = together(x, y)
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.maximum(x, y)))


@kernel("fmin")
def fmin(x: Tensor, y: Tensor) -> Tensor:
    x, y = together(x, y)
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.minimum(x, y)))


@kernel("angle")
def angle(x: Tensor) -> Tensor:
    if x.is_complex():
        return torch.atan2(x.imag, x.real)
    (x,) = floating(x)
    return torch.where(x.isnan(), x, (x < 0).to(x.dtype) * math.pi)


@composition("polar")
def polar(size: Tensor, angle: Tensor) -> Tensor:
    # torch's reverse rule takes the direction from the result, which has none where the size is 0.
    if size.dtype is not angle.dtype or not size.is_floating_point():
        torch.complex(size, angle)  # raises an error
    return torch.complex(size * torch.cos(angle), size * torch.sin(angle))


def _euclid(k: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    done = y == 0
    return torch.where(done, x, y), torch.where(done, 0, torch.fmod(x, torch.where(done, 1, y)))


@kernel("gcd")
def gcd(x: Tensor, y: Tensor) -> Tensor:
    x, y = (v.abs().clone() for v in together(x, y))
    # Euclid's algorithm takes fewer steps than this on integers of this width.
    return loop(_euclid, 12 * x.dtype.itemsize, [x, y])[0]


@kernel("lcm")
def lcm(x: Tensor, y: Tensor) -> Tensor:
    x, y = together(x, y)
    dtype, common = x.dtype, torch.gcd(x, y)
    if dtype.itemsize < 4:  # torch multiplies in C, where a narrow integer becomes an int
        x, y, common = x.int(), y.int(), common.int()
    result = (x // torch.where(common == 0, 1, common) * y).abs()
    return torch.where(common == 0, 0, result).to(dtype)


@kernel("view_copy.dtype")
def view_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype.itemsize != dtype.itemsize or x.is_complex() or dtype.is_complex:
        fail(
            UnsupportedOpError,
            "a view as a dtype of another size has no lowering to XLA",
            "view as a dtype of the same size, or convert with Tensor.to.",
        )
    if x.dtype == dtype:
        return x.clone()
    if torch.bool in (x.dtype, dtype):  # A boolean has one bit in XLA, eight in torch.
        return x.to(dtype)
    return instruction(build.bitcast_convert, x, dtype=dtype)
