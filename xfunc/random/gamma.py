"""The gamma distribution, and those built on it, by the algorithms of `jax.random`.

Each number has its own key, and is redrawn until accepted. Its derivative is not that of the loop,
but that of the distribution's quantile at the same rank: see `gamma_slope`.

Source: Marsaglia and Tsang, "A simple method for generating gamma variables", 2000.
"""

from __future__ import annotations

from functools import partial

import torch

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
from xfunc.random.continuous import normal, uniform
from xfunc.random.gamma_slope import gamma_slope
from xfunc.random.threefry import split
from xfunc.transforms.custom_jvp import custom_jvp
from xfunc.transforms.jit import jit
from xfunc.transforms.vmap import vmap
from xfunc.transforms.while_loop import while_loop


def gamma(key: Tensor, a: Number, shape: Shape | None = None, dtype: Dtype = None) -> Tensor:
    """Samples from the gamma distribution with shape parameter `a` and scale 1.

    Args:
        key: int32[2].
        a: positive; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers that are not negative.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.gamma``.
    """
    return _draw("gamma", key, a, shape, dtype, log=False)


def loggamma(key: Tensor, a: Number, shape: Shape | None = None, dtype: Dtype = None) -> Tensor:
    """Logarithms of gamma samples, accurate for small `a` too; see `gamma`.

    Args:
        key: int32[2].
        a: positive; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`.

    Source: ``jax.random.loggamma``.
    """
    return _draw("loggamma", key, a, shape, dtype, log=True)


def beta(
    key: Tensor, a: Number, b: Number, shape: Shape | None = None, dtype: Dtype = None
) -> Tensor:
    """Samples from the beta distribution; see `gamma`.

    Args:
        key: int32[2].
        a: positive; broadcasts to `shape`.
        b: positive; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers from 0 to 1.

    Source: ``jax.random.beta``.
    """
    return drawn_with(_beta, "beta", key, (a, b), shape, dtype)


def dirichlet(
    key: Tensor, alpha: Tensor, shape: Shape | None = None, dtype: Dtype = None
) -> Tensor:
    """Vectors from the Dirichlet distribution, along the last axis of `alpha`; see `gamma`.

    `shape` is the shape of the result without this axis.

    Args:
        key: int32[2].
        alpha: ``[..., n]``, positive.
        shape: shape of the result without its last axis; None means the leading axes of `alpha`.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape, n]`` of `dtype`: vectors of numbers from 0 to 1 that add up to 1.

    Source: ``jax.random.dirichlet``.
    """
    name = "dirichlet"
    key, dtype = as_key(key, name), floating(dtype, name)
    (alpha,) = numbers(dtype, alpha)
    dims = (*shape_or(shape, name, alpha[..., 0]), alpha.shape[-1])
    return torch.softmax(_gamma(key, alpha, shape=dims, dtype=dtype, log=True), -1)


def chisquare(key: Tensor, df: Number, shape: Shape | None = None, dtype: Dtype = None) -> Tensor:
    """Samples from the chi-square distribution with `df` degrees of freedom; see `gamma`.

    Args:
        key: int32[2].
        df: positive; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers that are not negative.

    Source: ``jax.random.chisquare``.
    """
    return 2 * torch.exp(_draw("chisquare", key, df, shape, dtype, log=True, factor=0.5))


def t(key: Tensor, df: Number, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Samples from Student's t distribution with `df` degrees of freedom; see `gamma`.

    Args:
        key: int32[2].
        df: positive; broadcasts to `shape`.
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`.

    Source: ``jax.random.t``.
    """
    return drawn_with(_t, "t", key, (df,), shape, dtype)


def f(
    key: Tensor, dfnum: Number, dfden: Number, shape: Shape | None = None, dtype: Dtype = None
) -> Tensor:
    """Samples from the F distribution with `dfnum` and `dfden` degrees of freedom; see `gamma`.

    Args:
        key: int32[2].
        dfnum: of the numerator: positive; broadcasts to `shape`.
        dfden: of the denominator: positive; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers that are not negative.

    Source: ``jax.random.f``.
    """
    return drawn_with(_f, "f", key, (dfnum, dfden), shape, dtype)


# -- programs -----------------------------------------------------------------------------------


def _draw(
    name: str,
    key: Tensor,
    a: Number,
    shape: Shape | None,
    dtype: Dtype,
    log: bool,
    factor: float = 1.0,
) -> Tensor:
    key, dtype = as_key(key, name), floating(dtype, name)
    (a,) = numbers(dtype, a)
    dims = shape_or(shape, name, a)
    return _gamma(key, a.to(dtype) * factor, shape=dims, dtype=dtype, log=log)


@partial(jit, static_argnames=("shape", "dtype", "log"))
def _gamma(key: Tensor, a: Tensor, shape: tuple[int, ...], dtype: torch.dtype, log: bool) -> Tensor:
    a = a.to(key.device, dtype).expand(shape).reshape(-1)
    return _samples(log, key, a).reshape(shape)


@partial(custom_jvp, nondiff_argnums=0)
def _samples(log: bool, key: Tensor, a: Tensor) -> Tensor:
    """One sample for each parameter of a vector."""
    if not a.numel():
        return a.clone()
    return vmap(partial(_one, log=log))(split(key, len(a)), a)


@_samples.defjvp
def _slopes(log: bool, primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> object:
    key, a = primals
    drawn = _samples(log, key, a)
    if not log:
        return drawn, tangents[1] * gamma_slope(a, drawn)
    x = torch.exp(drawn)
    x = torch.where(x == 0, torch.finfo(x.dtype).tiny, x)
    return drawn, tangents[1] * (gamma_slope(a, x) / x)


def _one(key: Tensor, a: Tensor, log: bool) -> Tensor:
    """One sample."""
    boosted = a < 1  # drawn for a + 1, then scaled
    b = torch.where(boosted, a + 1, a)
    d = b - 1 / 3
    c = (1 / 3) / torch.sqrt(d)

    def rejected(state: tuple[Tensor, ...]) -> Tensor:
        _, x, v, u = state
        quick = u >= 1 - 0.0331 * (x * x)
        return quick & (torch.log(u) >= x * 0.5 + d * ((1 - v) + torch.log(v)))

    def propose(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        rest, key_x, key_u = split(state[0], 3)

        def again(inner: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            following, now = split(inner[0])
            x = normal(now, (), a.dtype)
            return following, x, 1 + x * c

        start = key_x, torch.zeros_like(a), -torch.ones_like(a)
        _, x, v = while_loop(lambda inner: inner[2] <= 0, again, start)
        return rest, x * x, v * v * v, uniform(key_u, (), a.dtype)

    rest, key_boost = split(key)
    ones = torch.ones_like(a)
    _, _, v, _ = while_loop(rejected, propose, (rest, ones * 0, ones, ones * 2))
    u = uniform(key_boost, (), a.dtype)
    if log:
        boost = torch.log1p(-u)
        boost = torch.where(boosted & (boost != 0), boost * (1 / a), 0)
        return torch.log(d) + torch.log(v) + boost
    return d * v * torch.where(boosted, (1 - u) ** (1 / a), 1)


@partial(jit, static_argnames=("shape", "dtype"))
def _beta(key: Tensor, a: Tensor, b: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    drawn = [
        _gamma(k, x, shape=shape, dtype=dtype, log=True)
        for k, x in zip(split(key), (a, b), strict=True)
    ]
    most = torch.maximum(*drawn)
    first, second = (torch.exp(x - most) for x in drawn)
    return first / (first + second)


@partial(jit, static_argnames=("shape", "dtype"))
def _t(key: Tensor, df: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    key_n, key_g = split(key)
    half = df.to(key.device, dtype) / 2
    drawn = _gamma(key_g, half, shape=shape, dtype=dtype, log=False)
    return normal(key_n, shape, dtype) * torch.sqrt(half / drawn)


@partial(jit, static_argnames=("shape", "dtype"))
def _f(
    key: Tensor, above: Tensor, below: Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    key_below, key_above = split(key)
    above, below = above.to(key.device, dtype), below.to(key.device, dtype)
    ratio = chisquare(key_above, above, shape, dtype) / above
    return ratio / (chisquare(key_below, below, shape, dtype) / below)
