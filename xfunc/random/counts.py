"""Samples from counting distributions, by the algorithms of `jax.random`: the numbers agree.

All numbers of a draw are proposed together, round after round, until every one is accepted. So
each number depends on the others drawn with it, as in JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from xfunc.errors import fail
from xfunc.random.checks import INTEGERS, MANTISSA, Number, Shape, Tensor, as_key, numbers, shape_or
from xfunc.random.continuous import uniform
from xfunc.random.threefry import split
from xfunc.transforms.jit import jit
from xfunc.transforms.stop_gradient import stop_gradient
from xfunc.transforms.while_loop import while_loop


def poisson(
    key: Tensor, lam: Number, shape: Shape | None = None, dtype: torch.dtype = torch.int32
) -> Tensor:
    """Samples from the Poisson distribution.

    Args:
        key: int32[2].
        lam: the mean, converted to float32; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: an integer dtype; JAX's default is int32.

    Returns:
        ``[*shape]`` of `dtype`: counts; the largest number of `dtype` where one does not fit.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.poisson``.
    """
    name = "poisson"
    key, dtype = as_key(key, name), _integer(dtype, name)
    (lam,) = numbers(torch.float32, lam)
    return _poisson(key, lam, shape=shape_or(shape, name, lam), dtype=dtype)


def geometric(
    key: Tensor, p: Number, shape: Shape | None = None, dtype: torch.dtype = torch.int32
) -> Tensor:
    """The number of trials up to the first success, each with probability `p`; see `poisson`.

    A Python number is converted to float32.

    Args:
        key: int32[2].
        p: the probability of success; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: an integer dtype; JAX's default is int32.

    Returns:
        ``[*shape]`` of `dtype`: counts; the largest number of `dtype` where one does not fit.

    Source: ``jax.random.geometric``.
    """
    name = "geometric"
    key, dtype = as_key(key, name), _integer(dtype, name)
    (p,) = numbers(torch.float32, p)
    return _geometric(key, p, shape=shape_or(shape, name, p), dtype=dtype)


def _integer(dtype: torch.dtype, name: str) -> torch.dtype:
    if dtype not in INTEGERS:
        fail(TypeError, f"{name} was given the dtype {dtype}", "choose an integer dtype.")
    return dtype


# -- programs -----------------------------------------------------------------------------------

_program = partial(jit, static_argnames=("shape", "dtype"))


def real(x: Tensor, key: Tensor, shape: Shape) -> Tensor:
    """A parameter as floating numbers of a shape; counts have no gradient."""
    x = stop_gradient(x.to(key.device))
    return (x if x.dtype in MANTISSA else x.float()).expand(tuple(shape))


def _whole(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to an integer dtype as JAX does: the largest value if too large, 0 for NaN."""
    most = torch.iinfo(dtype).max
    return torch.where(x >= most, most, torch.where(x.isnan(), 0, x).to(dtype))


def rounds(
    key: Tensor,
    start: tuple[Tensor, Tensor],
    most: int,
    going: Callable[[Tensor], Tensor],
    step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
) -> Tensor:
    """The first value of the state, after as many rounds as all numbers need."""

    def again(state: tuple[Tensor, ...]) -> Tensor:
        return going(state[2]).any() & (state[0] < most)

    def body(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        i, found, rest, key = state
        found, rest, key = step(found, rest, key)
        return i + 1, found, rest, key

    i = torch.zeros((), dtype=torch.int64, device=key.device)
    return while_loop(again, body, (i, *start, key))[1]


@_program
def _geometric(key: Tensor, p: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    p = real(p, key, shape)
    u = uniform(key, shape, p.dtype)
    return _whole(torch.floor(torch.log(u) / torch.log1p(-p)) + 1, dtype)


# Below this mean events are counted one by one; above it, numbers are drawn by rejection.
FEW = 10


@_program
def _poisson(key: Tensor, lam: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    lam, most = real(lam, key, shape).float(), torch.iinfo(dtype).max
    few = lam.isnan() | (lam < FEW)
    one_by_one = _poisson_few(key, torch.where(few, lam, 0.0), most)
    rejection = _poisson_many(key, torch.where(few, 1e5, lam), most)
    found = torch.where(few, one_by_one.to(dtype), _whole(rejection, dtype))
    return torch.where(lam == 0, 0, found)


def _poisson_few(key: Tensor, lam: Tensor, most: int) -> Tensor:
    """Source: Knuth, "The Art of Computer Programming", volume 2, section 3.4.1."""

    def step(k: Tensor, total: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key, now = split(key)
        u = uniform(now, lam.shape, torch.float32)
        return torch.where(total > -lam, k + 1, k), total + torch.log(u), key

    none = torch.zeros_like(lam, dtype=torch.int64), torch.zeros_like(lam)
    return rounds(key, none, most, lambda total: total > -lam, step) - 1


def _poisson_many(key: Tensor, lam: Tensor, most: int) -> Tensor:
    """Source: Hoermann, "The transformed rejection method for Poisson variables", 1993."""
    log = torch.log(lam)
    b = 0.931 + 2.53 * torch.sqrt(lam)
    a = -0.059 + 0.02483 * b
    inverse = 1.1239 + 1.1328 / (b - 3.4)
    v_most = 0.9277 - 3.6224 / (b - 2)

    def step(found: Tensor, accepted: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key, key_u, key_v = split(key, 3)
        u = uniform(key_u, lam.shape, torch.float32) - 0.5
        v = uniform(key_v, lam.shape, torch.float32)
        left = 0.5 - u.abs()
        k = torch.floor((2 * a / left + b) * u + lam + 0.43)
        s = torch.log(v * inverse / (a / (left * left) + b))
        quick = (left >= 0.07) & (v <= v_most)
        rejected = (k < 0) | ((left < 0.013) & (v > left))
        accept = quick | (~rejected & (s <= -lam + k * log - _log_factorial(k)))
        return torch.where(accept, k, found), accepted | accept, key

    none = -torch.ones_like(lam), torch.zeros_like(lam, dtype=torch.bool)
    return rounds(key, none, most, lambda accepted: ~accepted, step)


# Lanczos's approximation of the gamma function with g = 7.
_LANCZOS = (
    676.520368121885098567009190444019, -1259.13921672240287047156078755283,
    771.3234287776530788486528258894, -176.61502916214059906584551354,
    12.507343278686904814458936853, -0.13857109526572011689554707,
    9.984369578019570859563e-6, 1.50563273514931155834e-7,
)  # fmt: skip


def _log_factorial(k: Tensor) -> Tensor:
    """In JAX's order of operations, since acceptance depends on rounding."""
    total = torch.full_like(k, 0.99999999999980993227684700473478)
    for i, c in enumerate(_LANCZOS):
        total = total + c / (k + (i + 1))
    t = 7.5 + k
    log = math.log(7.5) + torch.log1p(k / 7.5)
    return (k + 0.5 - t / log) * log + (math.log(2 * math.pi) / 2 + torch.log(total))
