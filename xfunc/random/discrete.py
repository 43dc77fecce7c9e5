"""Random booleans, integers and permutations, by the algorithms of `jax.random`."""

from __future__ import annotations

import math
from functools import partial

import torch

from xfunc.errors import fail
from xfunc.random.checks import (
    INTEGERS,
    MANTISSA,
    Number,
    Shape,
    Tensor,
    as_key,
    as_shape,
    check_broadcast,
    check_mode,
    numbers,
    shape_or,
)
from xfunc.random.continuous import gumbel_of, unit
from xfunc.random.threefry import random_bits, shift_right, split
from xfunc.transforms.jit import jit


def bernoulli(
    key: Tensor, p: Number = 0.5, shape: Shape | None = None, mode: str = "low"
) -> Tensor:
    """True with probability `p`, otherwise False.

    Args:
        key: int32[2].
        p: a floating tensor, or a number, converted to float32; broadcasts to `shape`.
        shape: shape of the result; None means that of `p`.
        mode: ``"high"`` is exact even for probabilities below 1e-7, at twice the cost.

    Returns:
        bool ``[*shape]``.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.bernoulli``.
    """
    name = "bernoulli"
    check_mode(mode, name)
    (p,) = numbers(torch.float32, p)
    if p.dtype not in MANTISSA:
        fail(TypeError, f"{name} was given a {p.dtype} as p", "convert it with .float().")
    dims = shape_or(shape, name, p)
    return _bernoulli(as_key(key, name), p, shape=dims, mode=mode)


def randint(
    key: Tensor,
    shape: Shape,
    minval: int | Tensor,
    maxval: int | Tensor,
    dtype: torch.dtype = torch.int32,
) -> Tensor:
    """Integers from `minval` up to but not including `maxval`.

    Args:
        key: int32[2].
        shape: shape of the result.
        minval: broadcasts to `shape`.
        maxval: broadcasts to `shape`; one above the largest value of `dtype` is allowed.
        dtype: an integer dtype. The numbers depend on the dtype; JAX's default is int32.

    Returns:
        ``[*shape]`` of `dtype`; `minval` where `maxval` is not above it.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.randint``.
    """
    name = "randint"
    if dtype not in INTEGERS:
        fail(TypeError, f"{name} was given the dtype {dtype}", "choose an integer dtype.")
    low, high = numbers(torch.int64, minval, maxval)
    for bound in (low, high):
        if bound.dtype not in INTEGERS:
            fail(TypeError, f"{name} was given a bound of {bound.dtype}", "pass integers.")
    key, dims = as_key(key, name), as_shape(shape, name)
    check_broadcast(name, dims, low, high)
    return _randint(key, low, high, shape=dims, dtype=dtype)


def permutation(key: Tensor, x: int | Tensor, axis: int = 0, independent: bool = False) -> Tensor:
    """A random permutation.

    Args:
        key: int32[2].
        x: tensor to permute along `axis`; a number n stands for ``torch.arange(n)`` (int64).
        axis: an axis of `x`.
        independent: whether to permute each vector along `axis` independently.

    Returns:
        A tensor of the shape and dtype of `x`; int64 ``[n]``, if `x` is a number.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.permutation``.
    """
    name = "permutation"
    key = as_key(key, name)
    if isinstance(x, Tensor) and x.ndim:
        if not -x.ndim <= axis < x.ndim:
            fail(ValueError, f"{name} has axis={axis}, but x has {x.ndim} axes", "choose another.")
        return _permutation(key, x, axis=axis % x.ndim, independent=bool(independent))
    if isinstance(x, bool) or not hasattr(x, "__index__"):
        fail(TypeError, f"{name} was given {x!r}", "pass an int, or a tensor of at least one axis.")
    return _order(key, n=x.__index__())


def categorical(
    key: Tensor,
    logits: Tensor,
    axis: int = -1,
    shape: Shape | None = None,
    replace: bool = True,
    mode: str | None = None,
) -> Tensor:
    """Positions along an axis, drawn with probabilities ``softmax(logits, axis)``.

    Args:
        key: int32[2].
        logits: a floating tensor.
        axis: the axis of the choices.
        shape: shape of the result, ending with the other axes of `logits`; leading axes are
            further draws. None means one draw for each distribution.
        replace: whether a choice may be drawn more than once.
        mode: see `gumbel`.

    Returns:
        int64 (JAX gives int32).

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.categorical``.
    """
    name = "categorical"
    key = as_key(key, name)
    mode = mode or "low"
    check_mode(mode, name)
    if not isinstance(logits, Tensor) or logits.dtype not in MANTISSA:
        fail(TypeError, f"{name} was given {logits!r} as logits", "pass a floating tensor.")
    if not -logits.ndim <= axis < logits.ndim:
        fail(ValueError, f"{name} has axis={axis} for {logits.ndim} axes", "choose another.")
    axis %= logits.ndim
    batch = (*logits.shape[:axis], *logits.shape[axis + 1 :])
    dims = batch if shape is None else as_shape(shape, name)
    if dims[len(dims) - len(batch) :] != batch:
        fail(
            ValueError,
            f"{name} has shape={dims}, which does not end with {batch}, the other axes of logits",
            "put further draws in front: shape=(n, *batch).",
        )
    draws = dims[: len(dims) - len(batch)]
    if not replace and math.prod(draws) > logits.shape[axis]:
        fail(
            ValueError,
            f"{name} was asked for {math.prod(draws)} different ones of {logits.shape[axis]}",
            "draw fewer, or with replace=True.",
        )
    return _categorical(key, logits, axis=axis, draws=draws, replace=bool(replace), mode=mode)


# -- programs -----------------------------------------------------------------------------------


@partial(jit, static_argnames=("shape", "mode"))
def _bernoulli(key: Tensor, p: Tensor, shape: tuple[int, ...], mode: str) -> Tensor:
    p = p.to(key.device)
    if mode == "low":
        return unit(key, shape=shape, dtype=p.dtype) < p
    high, low = unit(key, shape=(2, *shape), dtype=p.dtype)
    return low * 2.0 ** -MANTISSA[p.dtype] < p - high


@partial(jit, static_argnames=("shape", "dtype"))
def _randint(
    key: Tensor, low: Tensor, high: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    low, high = low.to(key.device, torch.int64), high.to(key.device, torch.int64)
    limits = torch.iinfo(dtype)
    beyond = high > limits.max
    low, high = low.clamp(limits.min, limits.max), high.clamp(limits.min, limits.max)
    keys = split(key)
    draws = [random_bits(k, shape=shape, dtype=dtype).to(torch.int64) for k in keys]
    span = torch.where(high > low, high - low + beyond, 1)
    if limits.bits < 64:  # Unsigned numbers of this width fit in an int64.
        mask, remainder = (1 << limits.bits) - 1, torch.fmod
        draws = [d & mask for d in draws]
    else:
        mask, remainder = -1, _unsigned_remainder
    # The two draws form a number of twice the width; its remainder is hardly biased.
    factor = remainder(torch.full_like(span, 1 << limits.bits // 2), span)
    factor = remainder(factor * factor & mask, span)
    offset = (remainder(draws[0], span) * factor + remainder(draws[1], span)) & mask
    return (low + remainder(offset, span)).to(dtype).expand(shape)


def _unsigned_remainder(x: Tensor, divisor: Tensor) -> Tensor:
    """``x % divisor`` of unsigned words in int64 tensors; `x` itself if the divisor is 0."""
    top = -(2**63)
    small = torch.where(divisor > 0, divisor, 1)
    rest = torch.fmod(shift_right(x, 1, 64), small) * 2 + (x & 1)  # less than twice the divisor
    rest = torch.where((rest ^ top) >= (small ^ top), rest - small, rest)
    large = torch.where((divisor != 0) & ((x ^ top) >= (divisor ^ top)), x - divisor, x)
    return torch.where(divisor > 0, rest, large)


@partial(jit, static_argnames="n")
def _order(key: Tensor, n: int) -> Tensor:
    return _shuffle(key, torch.arange(n, device=key.device), 0)


@partial(jit, static_argnames=("axis", "independent"))
def _permutation(key: Tensor, x: Tensor, axis: int, independent: bool) -> Tensor:
    x = x.to(key.device)
    if independent or x.ndim == 1:
        return _shuffle(key, x, axis)
    return x[(slice(None),) * axis + (_order(key, n=x.shape[axis]),)]


def _shuffle(key: Tensor, x: Tensor, axis: int) -> Tensor:
    # Sort by random words, often enough that equal words do no harm.
    for _ in range(math.ceil(3 * math.log(max(1, x.numel())) / math.log(2**32 - 1))):
        key, now = split(key)
        words = random_bits(now, shape=tuple(x.shape), dtype=torch.int32)
        words = words ^ -(2**31)  # now signed words sort like unsigned ones
        x = x.gather(axis, torch.sort(words, dim=axis, stable=True).indices)
    return x


@partial(jit, static_argnames=("axis", "draws", "replace", "mode"))
def _categorical(
    key: Tensor, logits: Tensor, axis: int, draws: tuple[int, ...], replace: bool, mode: str
) -> Tensor:
    logits = logits.to(key.device)
    shape = (*draws, *logits.shape) if replace else tuple(logits.shape)
    noisy = logits + gumbel_of(key, shape=shape, dtype=logits.dtype, mode=mode)
    if replace:
        return torch.argmax(noisy, axis + len(draws))
    found = torch.topk(noisy.movedim(axis, -1), math.prod(draws)).indices
    batch = found.shape[:-1]
    return found.movedim(-1, 0).reshape(*draws, *batch)
