"""Inverse functions of complex numbers, on torch's branches; real ones have rules.

XLA loses some or all digits of large numbers, misses the poles, and takes the wrong
branch where a part is zero. The formulas are those of W. Kahan ("Branch cuts for complex elementary
functions", 1987).
"""

from __future__ import annotations

import torch

from xfunc.graph import build
from xfunc.graph.node import Node
from xfunc.ops.emit import instruction
from xfunc.ops.registry import kernel

Tensor = torch.Tensor


@kernel("acos")
def acos(z: Tensor) -> Tensor:
    below, above = _roots(z)
    return torch.complex(
        2 * torch.atan2(below.real, above.real), torch.asinh((above.conj() * below).imag)
    )


@kernel("asin")
def asin(z: Tensor) -> Tensor:
    below, above = _roots(z)
    return torch.complex(
        torch.atan2(z.real, (below * above).real), torch.asinh((below.conj() * above).imag)
    )


@kernel("acosh")
def acosh(z: Tensor) -> Tensor:
    below = torch.sqrt(torch.complex(z.real - 1, z.imag))
    above = torch.sqrt(torch.complex(z.real + 1, z.imag))
    return torch.complex(
        torch.asinh((below.conj() * above).real), 2 * torch.atan2(below.imag, above.real)
    )


@kernel("asinh")
def asinh(z: Tensor) -> Tensor:
    return _unturned(asin(_turned(z)))


@kernel("atan")
def atan(z: Tensor) -> Tensor:
    return _unturned(atanh(_turned(z)))


@kernel("atanh")
def atanh(z: Tensor) -> Tensor:
    x, y = z.real, z.imag
    distance = (1 - x.abs()).square() + y.square()
    size = torch.log1p(4 * x.abs() / distance) / 4
    return torch.complex(
        torch.copysign(size, x), torch.atan2(2 * y, (1 - x) * (1 + x) - y.square()) / 2
    )


@kernel("log1p")
def log1p(z: Tensor) -> Tensor:
    found = instruction(_log1p, z)  # right away from the pole
    moved = torch.complex(1 + z.real, z.imag)
    size = moved.abs()
    return torch.complex(
        torch.where(size < 0.5, torch.log(size), found.real), torch.atan2(moved.imag, moved.real)
    )


def _log1p(z: Node) -> Node:
    return build.unary("log-plus-one", z)


def _roots(z: Tensor) -> tuple[Tensor, Tensor]:
    """Square roots of ``1 - z`` and ``1 + z``, respecting the sign of a zero imaginary part."""
    below, above = torch.complex(1 - z.real, -z.imag), torch.complex(1 + z.real, z.imag)
    return torch.sqrt(below), torch.sqrt(above)


def _turned(z: Tensor) -> Tensor:
    return torch.complex(-z.imag, z.real)


def _unturned(z: Tensor) -> Tensor:
    return torch.complex(z.imag, -z.real)
