"""Powers of integers, and operations whose value at special points is torch's."""

from __future__ import annotations

import torch

from xfunc.ops.elementwise import floating, together
from xfunc.ops.emit import loop
from xfunc.ops.registry import kernel

Tensor = torch.Tensor
Operand = Tensor | float


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


@kernel("pow.Tensor_Tensor", "pow.Scalar")
def power_of_integers(x: Operand, y: Operand) -> Tensor:
    return _int_pow(*together(x, y))


@kernel("xlogy.Tensor")
def xlogy(x: Operand, y: Operand) -> Tensor:
    x, y = floating(x, y)
    return torch.where(y.isnan(), y, torch.where(x == 0, torch.zeros_like(x), x * torch.log(y)))


@kernel("special_xlog1py")
def xlog1py(x: Operand, y: Operand) -> Tensor:
    x, y = floating(x, y)
    return torch.where(y.isnan(), y, torch.where(x == 0, torch.zeros_like(x), x * torch.log1p(y)))


@kernel("heaviside")
def heaviside(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype is not y.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return torch.where(x == 0, y, (x > 0).to(y.dtype))
