"""Arithmetic and comparisons of two operands, of any dtypes.

NOTE [operands of torch_xla 2.9]: it divides and compares operands of different dtypes without
promoting them, divides integers in floating point, and casts a Python number to the array's dtype.
It is right where both operands have the same floating dtype.

NOTE [integer arithmetic]: overflow wraps around, as in torch. Where torch raises an error for
division by zero, a compiled program can't: the quotient is -1 (all bits set) and the remainder is
the dividend, as in XLA and JAX.
"""

from __future__ import annotations

import math

import torch

from xfunc.hlo import ComputationBuilder, Value
from xfunc.ops.elementwise import floating, together
from xfunc.ops.emit import instruction, loop
from xfunc.ops.registry import above, bare, kernel, original, theirs

Tensor = torch.Tensor
Operand = Tensor | float


def _is_floating(x: Operand, y: Operand) -> bool:
    """Whether both have the same floating dtype."""
    if not isinstance(x, Tensor) or not x.dtype.is_floating_point:
        return False
    return isinstance(y, Tensor) and y.dtype == x.dtype


def _two(body: ComputationBuilder, x: Value, y: Value, *, opcode: str) -> Value:
    return body.instruction(opcode, x.shape, [x, y])[0]


# -- division -------------------------------------------------------------------------------------


def _div(x: Operand, y: Operand) -> Tensor:
    x, y = floating(x, y)
    found = instruction(_two, x, y, opcode="divide")
    if not x.is_complex():
        return found
    # XLA multiplies by the reciprocal of a constant: NaN for zero. torch ignores the zero's sign.
    return torch.where(y == 0, torch.complex(x.real / 0.0, x.imag / 0.0), found)


@bare("div.Tensor")
def div(x: Operand, y: Operand) -> Tensor:
    return theirs("div.Tensor", x, y) if _is_floating(x, y) else above(_div, x, y)


@bare("div.Scalar")
def div_scalar(x: Tensor, y: float) -> Tensor:
    real = x.dtype.is_floating_point and not isinstance(y, complex)
    return theirs("div.Scalar", x, y) if real else above(_div, x, y)


@kernel("reciprocal")
def reciprocal(x: Tensor) -> Tensor:
    return _div(1, x)


@kernel("div.Tensor_mode")
def div_mode(x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return _div(x, y)
    x, y = together(x, y)
    if x.dtype.is_floating_point:
        return torch.trunc(_div(x, y)) if rounding_mode == "trunc" else _floor_of_floats(x, y)
    quotient = instruction(_two, x, y, opcode="divide")
    if rounding_mode == "trunc" or not x.dtype.is_signed:
        return quotient
    rest = instruction(_two, x, y, opcode="remainder")
    down = (rest != 0) & ((rest < 0) != (y < 0)) & (y != 0)
    return quotient - down.to(x.dtype)


def _floor_of_floats(x: Tensor, y: Tensor) -> Tensor:
    """Floor division as in Python: from the remainder, which is exact."""
    rest = instruction(_two, x, y, opcode="remainder")
    quotient = _div(x - rest, y)
    quotient = torch.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    whole = torch.floor(quotient)
    whole = torch.where(quotient - whole > 0.5, whole + 1, whole)
    plain = _div(x, y)
    whole = torch.where(quotient == 0, torch.copysign(torch.zeros_like(x), plain), whole)
    return torch.where(y == 0, plain, whole)


@kernel("floor_divide", "floor_divide.Scalar")
def floor_divide(x: Operand, y: Operand) -> Tensor:
    return div_mode(x, y, rounding_mode="floor")


@kernel("fmod.Tensor", "fmod.Scalar")
def fmod(x: Tensor, y: Operand) -> Tensor:
    return instruction(_two, *together(x, y), opcode="remainder")


@kernel("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(x: Operand, y: Operand) -> Tensor:
    x, y = together(x, y)
    rest = instruction(_two, x, y, opcode="remainder")
    if not x.dtype.is_signed:
        return rest
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)) & (y != 0), rest + y, rest)


# -- powers ---------------------------------------------------------------------------------------


def _bit(k: Tensor, found: Tensor, power: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    odd = torch.bitwise_and(torch.bitwise_right_shift(by, k.to(by.dtype)), 1) == 1
    return torch.where(odd, found * power, found), power * power


def _int_pow(x: Tensor, y: Tensor) -> Tensor:
    bits = x.dtype.itemsize * 8 - x.dtype.is_signed
    found, _ = loop(_bit, bits, [torch.ones_like(x), x.clone()], [y])
    if not x.dtype.is_signed:
        return found
    odd = torch.where(torch.bitwise_and(y, 1) == 1, x, 1)  # for 1 and -1
    return torch.where(y < 0, torch.where(x.abs() == 1, odd, 0), found)


def _complex_pow(x: Tensor, y: Tensor) -> Tensor:
    found = instruction(_two, x, y, opcode="power")
    zero = x == 0
    found = torch.where(zero & (y == 0), 1, found)
    found = torch.where(zero & (y.real < 0) & (y.imag == 0), complex(math.inf, math.nan), found)
    return torch.where(zero & (y.real > 0), 0, found)


def _pow(x: Operand, y: Operand) -> Tensor:
    x, y = together(x, y)
    if x.dtype.is_complex:
        return _complex_pow(x, y)
    if x.dtype.is_floating_point:
        return original("pow.Tensor_Tensor")(x, y)
    if x.dtype is torch.bool:
        return x | ~y
    return _int_pow(x, y)


@bare("pow.Tensor_Tensor")
def pow_tensor(x: Tensor, y: Tensor) -> Tensor:
    return theirs("pow.Tensor_Tensor", x, y) if _is_floating(x, y) else above(_pow, x, y)


@bare("pow.Tensor_Scalar")
def pow_scalar(x: Tensor, y: float) -> Tensor:
    if x.dtype.is_floating_point and not isinstance(y, complex):
        root = {0.5: "sqrt", -0.5: "rsqrt"}.get(y)  # NaN for -inf, as in torch
        return theirs(root, x) if root else theirs("pow.Tensor_Scalar", x, y)
    if isinstance(y, int) and y < 0 and not x.is_complex():
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    return above(_square if type(y) is int and y == 2 else _pow, x, y)


def _square(x: Tensor, y: int) -> Tensor:
    return x * x if x.dtype is not torch.bool else _pow(x, y)


@kernel("pow.Scalar")
def scalar_pow(x: float, y: Tensor) -> Tensor:
    return _pow(x, y)


# -- comparisons ----------------------------------------------------------------------------------


def _comparison(name: str) -> None:
    def compare(x: Operand, y: Operand) -> Tensor:
        return original(f"{name}.Tensor")(*together(x, y))

    def run(x: Tensor, y: Operand, *, overload: str) -> Tensor:
        # Next to a narrow array the number is rounded too: its 0.1 differs from float32's.
        number = not isinstance(y, (Tensor, complex)) and x.dtype in (torch.float32, torch.float64)
        if number or (isinstance(y, Tensor) and y.dtype == x.dtype):
            return theirs(f"{name}.{overload}", x, y)
        return above(compare, x, y)

    for overload in ("Tensor", "Scalar"):

        def put(x: Tensor, y: Operand, overload: str = overload) -> Tensor:
            return run(x, y, overload=overload if isinstance(y, Tensor) else "Scalar")

        bare(f"{name}.{overload}")(put)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)


# -- bounds ---------------------------------------------------------------------------------------


def _clamped(x: Tensor, least: object, most: object) -> Tensor:
    given = [x, *(b for b in (least, most) if b is not None)]
    x, *bounds = together(*given)
    if least is not None:
        x = torch.maximum(x, bounds[0])
    return x if most is None else torch.minimum(x, bounds[-1])


@bare("clamp")
def clamp(x: Tensor, least: float | None = None, most: float | None = None) -> Tensor:
    # Given only one bound, torch_xla 2.9 uses the greatest finite number as the other.
    if x.dtype.is_floating_point and least is not None and most is not None:
        return theirs("clamp", x, least, most)
    return above(_clamped, x, least, most)


@kernel("clamp.Tensor")
def clamp_tensor(x: Tensor, least: Tensor | None = None, most: Tensor | None = None) -> Tensor:
    return _clamped(x, least, most)


@kernel("clamp_min", "clamp_min.Tensor")
def clamp_min(x: Tensor, least: Operand) -> Tensor:
    return _clamped(x, least, None)  # torch_xla 2.9 does not broadcast.


@kernel("clamp_max", "clamp_max.Tensor")
def clamp_max(x: Tensor, most: Operand) -> Tensor:
    return _clamped(x, None, most)


def _atan2(x: Tensor, y: Tensor) -> Tensor:
    return original("atan2")(*floating(x, y))


@bare("atan2")
def atan2(x: Tensor, y: Tensor) -> Tensor:
    return theirs("atan2", x, y) if _is_floating(x, y) else above(_atan2, x, y)


@kernel("xlogy.Tensor")
def xlogy(x: Operand, y: Operand) -> Tensor:
    x, y = floating(x, y)
    return torch.where(y.isnan(), y, torch.where(x == 0, torch.zeros_like(x), x * torch.log(y)))


@kernel("heaviside")
def heaviside(x: Tensor, y: Tensor) -> Tensor:
    x, y = together(x, y)
    return torch.where(x == 0, y, (x > 0).to(y.dtype))


def _logical(name: str) -> None:
    def of_truth(x: Tensor, y: Tensor) -> Tensor:
        return original(name)(x != 0, y != 0)

    @bare(name)
    def run(x: Tensor, y: Tensor) -> Tensor:
        # torch_xla 2.9 looks only at the real part.
        mixed = x.is_complex() or y.is_complex()
        return above(of_truth, x, y) if mixed else theirs(name, x, y)


for _name in ("logical_and", "logical_or", "logical_xor"):
    _logical(_name)
