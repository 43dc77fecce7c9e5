"""Binomial and multinomial counts: see `xfunc.random.counts`."""

from __future__ import annotations

import math
from functools import partial

import torch

from xfunc.errors import fail
from xfunc.random.checks import (
    Dtype,
    Number,
    Shape,
    Tensor,
    as_key,
    drawn_with,
    floating,
    numbers,
    shape_or,
)
from xfunc.random.continuous import uniform
from xfunc.random.counts import FEW, real, rounds
from xfunc.random.threefry import split
from xfunc.transforms.jit import jit
from xfunc.transforms.scan.scan import scan


def binomial(
    key: Tensor, n: Number, p: Number, shape: Shape | None = None, dtype: Dtype = None
) -> Tensor:
    """The number of successes in `n` trials, each with probability `p`.

    Args:
        key: int32[2].
        n: number of trials; broadcasts to `shape`.
        p: broadcasts to `shape`; a Python number is converted to `dtype`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        A count, or NaN where `n` is negative or `p` is not a probability.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.binomial``.
    """
    return drawn_with(_binomial, "binomial", key, (n, p), shape, dtype)


def multinomial(
    key: Tensor,
    n: Number,
    p: Tensor,
    *,
    shape: Shape | None = None,
    dtype: Dtype = None,
    unroll: int = 1,
) -> Tensor:
    """The number of `n` trials with each outcome, along the last axis of `p`.

    Args:
        key: int32[2].
        n: number of trials; broadcasts to the shape of the result without its last axis.
        p: the probability of each outcome; broadcasts to `shape`.
        shape: shape of the result; None means that of `p`.
        dtype: a floating dtype; None means torch's default.
        unroll: `unroll` for the `scan` over the outcomes.

    Returns:
        ``[*shape]`` of `dtype`: along the last axis, how many of the trials have each outcome.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.multinomial``.
    """
    name = "multinomial"
    key, dtype = as_key(key, name), floating(dtype, name)
    n, p = numbers(dtype, n, p)
    dims = shape_or(shape, name, p)
    if not p.ndim:
        fail(ValueError, f"{name} was given one probability", "give an axis of them.")
    shape_or(dims[:-1], name, n)
    return _multinomial(key, n, p, shape=dims, dtype=dtype, unroll=unroll)


# -- programs -----------------------------------------------------------------------------------

_program = partial(jit, static_argnames=("shape", "dtype"))


@_program
def _binomial(key: Tensor, n: Tensor, p: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    p = real(p, key, shape)
    n = real(n, key, shape).to(p.dtype)
    q = torch.where(p < 0.5, p, 1 - p)
    bad_n, bad_q = n.isnan() | (n < 0), q.isnan() | (q < 0)
    q = torch.where(bad_q, 0.01, q)
    few = bad_n | (n * q <= FEW)
    n = torch.floor(n)
    most = int(min(torch.finfo(dtype).max, 2**62))
    found = torch.where(
        few,
        _binomial_few(key, torch.where(few, n, 0.0), q, most).to(dtype),
        _binomial_many(key, torch.where(few, 1e4, n), torch.where(few, 0.5, q), most).to(dtype),
    )
    found = torch.where(bad_n | bad_q, math.nan, found)
    endless = n.isinf()
    found = torch.where(endless & ~(bad_n | bad_q), math.inf, found)
    return torch.where((p < 0.5) | bad_n | endless, found, n.to(dtype) - found)


def _binomial_few(key: Tensor, n: Tensor, p: Tensor, most: int) -> Tensor:
    """The gaps between successes are geometrically distributed."""
    log = torch.log1p(-p)

    def step(k: Tensor, total: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        now, key = split(key)
        k = torch.where(total <= n, k + 1, k)
        apart = torch.ceil(torch.log(uniform(now, p.shape, p.dtype)) / log)
        return k, total + apart, key

    none = torch.zeros_like(p), torch.zeros_like(p)
    return rounds(key, none, most, lambda total: total <= n, step) - 1


def _binomial_many(key: Tensor, n: Tensor, p: Tensor, most: int) -> Tensor:
    """Source: Hoermann, "The generation of binomial random variates", 1993."""
    deviation = torch.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    c = n * p + 0.5
    v_most = 0.92 - 4.2 / b
    r = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * deviation
    m = torch.floor((n + 1) * p)

    def step(found: Tensor, accepted: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key, key_u, key_v = split(key, 3)
        u = uniform(key_u, p.shape, p.dtype)
        v = uniform(key_v, p.shape, p.dtype)
        u = u - 0.5
        left = 0.5 - u.abs()
        quick = (left >= 0.07) & (v <= v_most)
        k = torch.floor((2 * a / left + b) * u + c)
        rejected = (k < 0) | (k > n)
        v = torch.log(v * alpha / (a / (left * left) + b))
        bound = (
            (m + 0.5) * torch.log((m + 1) / (r * (n - m + 1)))
            + (n + 1) * torch.log((n - m + 1) / (n - k + 1))
            + (k + 0.5) * torch.log(r * (n - k + 1) / (k + 1))
            + _tail(m)
            + _tail(n - m)
            - _tail(k)
            - _tail(n - k)
        )
        accept = quick | (~rejected & (v <= bound))
        return torch.where(accept, k, found), accepted | accept, key

    none = -torch.ones_like(p), torch.zeros_like(p, dtype=torch.bool)
    return rounds(key, none, most, lambda accepted: ~accepted, step)


# The error of Stirling's formula for log(k!), for k from 0 to 9.
_TAIL = (
    0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509,
    0.0166446911898211, 0.0138761288230707, 0.0118967099458917, 0.0104112652619720,
    0.00925546218271273, 0.00833056343336287,
)  # fmt: skip


def _tail(k: Tensor) -> Tensor:
    """The error of Stirling's formula for log(k!)."""
    small = k.clamp(0, len(_TAIL) - 1)
    square = (small + 1) * (small + 1)
    result = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / (small + 1)
    for i, value in enumerate(_TAIL):
        result = torch.where((k <= 9) & (small.floor() == i), value, result)
    return result


@partial(jit, static_argnames=("shape", "dtype", "unroll"))
def _multinomial(
    key: Tensor, n: Tensor, p: Tensor, shape: Shape, dtype: torch.dtype, unroll: int
) -> Tensor:
    p = real(p, key, shape)
    n = real(n, key, shape[:-1])
    wide = torch.promote_types(n.dtype, p.dtype)
    n, p = n.to(wide), p.to(wide).movedim(-1, 0)
    rest = p.flip(0).cumsum(0).flip(0)
    ratios = p / torch.where(rest == 0, 1.0, rest)

    def one(left: Tensor, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        ratio, key = given
        count = _binomial(key, left, ratio.clamp(0, 1), shape=shape[:-1], dtype=left.dtype)
        return left - count, count

    _, counts = scan(one, n, (ratios, split(key, p.shape[0])), unroll=unroll)
    return counts.movedim(0, -1).to(dtype)
