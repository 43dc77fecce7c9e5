"""Complex logarithms, roots and powers, for which XLA assumes identities of real numbers.

XLA's algebraic simplifier replaces ``log(exp(z))`` by `z`, ``sqrt(z * z)`` by ``abs(z)`` and
``exp(z) ** w`` by ``exp(z * w)``, whatever the imaginary part of `z`. Here the imaginary part of a
logarithm is computed separately; its real part is right in any case. Roots and powers are computed
as the conjugate of those of the conjugate, which is equal and not recognised by the simplifier.

XLA of jaxlib (0.7.1 to 0.10.2) ignores the sign of a zero: its root of -1 - 0i is that of -1 + 0i.
So the sign of the imaginary part of a root is taken from the operand.
"""

from __future__ import annotations

import torch

from xfunc.graph import build
from xfunc.graph.build import binary, subtract, unary
from xfunc.graph.node import Node

_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def logarithm(z: Node) -> Node:
    """The logarithm of complex numbers."""
    angle = binary("atan2", build.imag(z), build.real(z))
    return build.complex_(build.real(unary("log", z)), angle)


def root(opcode: str, z: Node) -> Node:
    """``"sqrt"`` or ``"rsqrt"`` of complex numbers."""
    found, sign = unary(opcode, _conjugate(z)), build.imag(z)
    if opcode == "rsqrt":
        sign = unary("negate", sign)
    return build.complex_(build.real(found), _with_sign(build.imag(found), sign))


def power(z: Node, w: Node) -> Node:
    """Powers of complex numbers."""
    found = binary("power", _conjugate(z), _conjugate(w))
    # The conjugate of a conjugate cancels, and the root would again be one of a power.
    imaginary = build.imag(found)
    return build.complex_(build.real(found), subtract(build.full(-0.0, imaginary.type), imaginary))


def _conjugate(z: Node) -> Node:
    return build.complex_(build.real(z), unary("negate", build.imag(z)))


def _with_sign(x: Node, sign: Node) -> Node:
    """The size of one number with the sign of another."""
    bits = _BITS[x.type.dtype]
    size = build.bitcast_convert(unary("abs", x), bits)
    lowest = binary("and", build.bitcast_convert(sign, bits), torch.iinfo(bits).min)
    return build.bitcast_convert(build.or_(size, lowest), x.type.dtype)
