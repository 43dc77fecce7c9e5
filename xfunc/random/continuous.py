"""Samples from continuous distributions, by the algorithms of `jax.random`: the numbers agree.

Each function is one cached program for each shape and dtype: repeated draws are traced only once.
The bounds of a distribution may be tensors, and gradients flow to them.
"""

from __future__ import annotations

import math
from functools import partial

import torch

from xfunc.random.checks import (
    MANTISSA,
    Number,
    Shape,
    Tensor,
    as_key,
    as_shape,
    check_broadcast,
    check_mode,
    drawn,
    drawn_with,
    floating,
    numbers,
)
from xfunc.random.threefry import random_bits, shift_right, split
from xfunc.transforms.jit import jit


def uniform(
    key: Tensor,
    shape: Shape = (),
    dtype: torch.dtype | None = None,
    minval: Number = 0.0,
    maxval: Number = 1.0,
) -> Tensor:
    """Uniform samples from the interval ``[minval, maxval)``.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.
        minval: broadcasts to `shape`.
        maxval: broadcasts to `shape`.

    Returns:
        ``[*shape]`` of `dtype`.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.uniform``.
    """
    name = "uniform"
    key, dims, dtype = as_key(key, name), as_shape(shape, name), floating(dtype, name)
    given = isinstance(minval, Tensor) or isinstance(maxval, Tensor)
    if not given and (minval, maxval) == (0.0, 1.0):
        return unit(key, shape=dims, dtype=dtype)
    low, high = numbers(dtype, minval, maxval)
    check_broadcast(name, dims, low, high)
    return _uniform(key, low, high, shape=dims, dtype=dtype)


def normal(key: Tensor, shape: Shape = (), dtype: torch.dtype | None = None) -> Tensor:
    """Samples from the normal distribution with mean 0 and variance 1.

    Complex samples have real and imaginary parts of variance 1/2.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: a floating dtype, complex64 or complex128; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.normal``.
    """
    if dtype in (torch.complex64, torch.complex128):
        return _complex_normal(as_key(key, "normal"), shape=as_shape(shape, "normal"), dtype=dtype)
    return drawn(_normal, "normal", key, shape, dtype)


def truncated_normal(
    key: Tensor,
    lower: Number,
    upper: Number,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Samples from the normal distribution with mean 0 and variance 1, between two bounds.

    Args:
        key: int32[2].
        lower: broadcasts to `shape`.
        upper: broadcasts to `shape`.
        shape: shape of the result; None means that of the bounds.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers between `lower` and `upper`.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.truncated_normal``.
    """
    return drawn_with(_truncated_normal, "truncated_normal", key, (lower, upper), shape, dtype)


def gumbel(
    key: Tensor, shape: Shape = (), dtype: torch.dtype | None = None, mode: str | None = None
) -> Tensor:
    """Samples from the standard Gumbel distribution.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.
        mode: ``"high"`` has a longer tail, at twice the cost; None means ``"low"``.

    Returns:
        ``[*shape]`` of `dtype`.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.gumbel``.
    """
    mode = mode or "low"
    check_mode(mode, "gumbel")
    return drawn(gumbel_of, "gumbel", key, shape, dtype, mode=mode)


# -- programs -----------------------------------------------------------------------------------


@partial(jit, static_argnames=("shape", "dtype"))
def unit(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """`uniform` from 0 to 1, for checked arguments."""
    # The same as in JAX, which fills the mantissa of a number in [1, 2) and subtracts 1.
    n = MANTISSA[dtype]
    if dtype is torch.float64:
        found = shift_right(random_bits(key, shape=shape, dtype=torch.int64), 64 - n, 64)
    else:
        drawn = random_bits(key, shape=shape, dtype=torch.int32)
        width = {torch.float32: 32, torch.float16: 16, torch.bfloat16: 8}[dtype]
        if width < 32:
            drawn = drawn & ((1 << width) - 1)
        found = shift_right(drawn, width - n)
    return found.to(dtype) * 2.0**-n


@partial(jit, static_argnames=("shape", "dtype"))
def _uniform(
    key: Tensor, low: Tensor, high: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    low, high = low.to(key.device, dtype), high.to(key.device, dtype)
    return torch.maximum(low, unit(key, shape=shape, dtype=dtype) * (high - low) + low)


@partial(jit, static_argnames=("shape", "dtype"))
def _normal(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    above = -1.0 + 2.0 ** -(MANTISSA[dtype] + 1)  # the next number after -1
    low, high, root = numbers(dtype, above, 1.0, math.sqrt(2))
    return root.to(key.device) * torch.erfinv(_uniform(key, low, high, shape=shape, dtype=dtype))


@partial(jit, static_argnames=("shape", "dtype"))
def _complex_normal(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    real, imag = (_normal(k, shape=shape, dtype=dtype.to_real()) for k in split(key))
    return torch.complex(real, imag) / math.sqrt(2)


@partial(jit, static_argnames=("shape", "dtype"))
def _truncated_normal(
    key: Tensor, low: Tensor, high: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    low, high = low.to(key.device, dtype), high.to(key.device, dtype)
    root = numbers(dtype, math.sqrt(2))[0].to(key.device)
    u = _uniform(key, torch.erf(low / root), torch.erf(high / root), shape=shape, dtype=dtype)
    found = root * torch.erfinv(u)
    sign = torch.where(low > 0, 1.0, -1.0)
    is_tail = torch.maximum(low, -high) > _TAIL
    drawn = unit(key, shape=shape, dtype=dtype)
    found = torch.where(is_tail, _in_tail(drawn, low, high, sign, is_tail), found)
    return torch.minimum(torch.maximum(found, _inwards(low, 1)), _inwards(high, -1))


_TAIL = 2.0  # Beyond it erf is close to 1, and its inverse inexact.


def _in_tail(drawn: Tensor, low: Tensor, high: Tensor, sign: Tensor, is_tail: Tensor) -> Tensor:
    """The quantile of numbers from 0 to 1, between bounds on one side of 0.

    Solves ``log_ndtr(-x) = p`` by Newton's method, which converges from above.
    """
    dtype = drawn.dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    drawn, low, high, sign = (t.to(wide) for t in (drawn, low, high, sign))
    near = torch.where(is_tail, torch.where(sign > 0, low, -high), _TAIL)
    far = torch.where(is_tail, torch.where(sign > 0, high, -low), _TAIL)
    far = torch.minimum(far, near + 50.0)  # as good as infinity
    part = torch.where(sign > 0, drawn, 1 - drawn)
    p = _log_tail(near) + torch.log1p(part * torch.expm1(_log_tail(far) - _log_tail(near)))
    x = torch.sqrt(-2 * p)
    for _ in range(5):
        slope = math.sqrt(2 / math.pi) / torch.special.erfcx(x / math.sqrt(2))
        x = x + (_log_tail(x) - p) / slope
    return (sign * x).to(dtype)


def _log_tail(x: Tensor) -> Tensor:
    """The logarithm of the probability of more than `x`, which is positive."""
    return torch.log(torch.special.erfcx(x / math.sqrt(2)) / 2) - x * x / 2


def _inwards(bound: Tensor, sign: int) -> Tensor:
    """The next number above (or below) a bound, without a gradient."""
    # torch.nextafter has no lowering. Slightly more than half a unit in the last place rounds up.
    # Source: Rump et al., "Computing predecessor and successor in rounding to nearest", 2009.
    finite = torch.finfo(bound.dtype)
    bound = bound.detach().clamp(finite.min, finite.max)
    wide = bound.double() if bound.dtype is torch.float64 else bound.float()
    half = 2.0 ** -(MANTISSA[bound.dtype] + 1)
    step = wide.abs() * (half * (1 + 2 * half)) + finite.tiny
    return (wide + sign * step).to(bound.dtype)


@partial(jit, static_argnames=("shape", "dtype", "mode"))
def gumbel_of(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype, mode: str) -> Tensor:
    """`gumbel`, for checked arguments."""
    tiny = torch.finfo(dtype).tiny
    if mode == "low":
        low, high = numbers(dtype, tiny, 1.0)
        return -torch.log(-torch.log(_uniform(key, low, high, shape=shape, dtype=dtype)))
    high, low = unit(key, shape=(2, *shape), dtype=dtype)
    x = torch.where(high >= 0.5, high, high + 2.0 ** -MANTISSA[dtype] * low + tiny)
    return -torch.log(-torch.log1p(-x))
