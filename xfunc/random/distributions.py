"""More continuous distributions, each built from draws of simpler ones as in `jax.random`."""

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
    as_shape,
    drawn,
    drawn_with,
    floating,
    numbers,
    shape_or,
)
from xfunc.random.continuous import normal, uniform
from xfunc.random.discrete import bernoulli
from xfunc.random.threefry import split
from xfunc.transforms.jit import jit


def exponential(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Samples from the exponential distribution with rate 1.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers that are not negative.

    Raises:
        TypeError: the key, dtype or shape is invalid.

    Source: ``jax.random.exponential``.
    """
    return drawn(_exponential, "exponential", key, shape, dtype)


def laplace(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Samples from the Laplace distribution with mean 0 and scale 1; see `exponential`.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`.

    Source: ``jax.random.laplace``.
    """
    return drawn(_laplace, "laplace", key, shape, dtype)


def logistic(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Samples from the logistic distribution with mean 0 and scale 1; see `exponential`.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`.

    Source: ``jax.random.logistic``.
    """
    return drawn(_logistic, "logistic", key, shape, dtype)


def cauchy(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Samples from the Cauchy distribution with location 0 and scale 1; see `exponential`.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`.

    Source: ``jax.random.cauchy``.
    """
    return drawn(_cauchy, "cauchy", key, shape, dtype)


def maxwell(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Samples from the Maxwell distribution with scale 1; see `exponential`.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers that are not negative.

    Source: ``jax.random.maxwell``.
    """
    return drawn(_maxwell, "maxwell", key, shape, dtype)


def rademacher(key: Tensor, shape: Shape = (), dtype: torch.dtype = torch.int32) -> Tensor:
    """1 or -1, with equal probability.

    Args:
        key: int32[2].
        shape: shape of the result.
        dtype: dtype of the result, which must be signed.

    Returns:
        ``[*shape]`` of `dtype`: each number is 1 or -1.

    Raises:
        TypeError: the key, dtype or shape is invalid.

    Source: ``jax.random.rademacher``.
    """
    if not dtype.is_signed:
        fail(TypeError, f"rademacher was given the dtype {dtype}", "give a signed dtype.")
    # The same bits as JAX's, which computes in float64 when 64-bit types are enabled.
    half = torch.tensor(0.5, dtype=torch.float64 if dtype.itemsize == 8 else torch.float32)
    drawn = bernoulli(as_key(key, "rademacher"), half, as_shape(shape, "rademacher"))
    return drawn.to(dtype) * 2 - 1


def rayleigh(key: Tensor, scale: Number, shape: Shape | None = None, dtype: Dtype = None) -> Tensor:
    """Samples from the Rayleigh distribution.

    Args:
        key: int32[2].
        scale: broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers that are not negative, if `scale` is not.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.rayleigh``.
    """
    return drawn_with(_rayleigh, "rayleigh", key, (scale,), shape, dtype)


def pareto(key: Tensor, b: Number, shape: Shape | None = None, dtype: Dtype = None) -> Tensor:
    """Samples from the Pareto distribution with shape parameter `b` and scale 1; see `rayleigh`.

    Args:
        key: int32[2].
        b: positive; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers from 1 on.

    Source: ``jax.random.pareto``.
    """
    return drawn_with(_pareto, "pareto", key, (b,), shape, dtype)


def lognormal(
    key: Tensor, sigma: Number = 1.0, shape: Shape | None = None, dtype: Dtype = None
) -> Tensor:
    """Exponentials of normal samples with standard deviation `sigma`; see `rayleigh`.

    Args:
        key: int32[2].
        sigma: broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers that are not negative.

    Source: ``jax.random.lognormal``.
    """
    return drawn_with(_lognormal, "lognormal", key, (sigma,), shape, dtype)


def weibull_min(
    key: Tensor, scale: Number, concentration: Number, shape: Shape = (), dtype: Dtype = None
) -> Tensor:
    """Samples from the Weibull distribution; see `rayleigh`.

    Args:
        key: int32[2].
        scale: factor of the samples; broadcasts to `shape`.
        concentration: the distribution's shape parameter, positive; broadcasts to `shape`.
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`: numbers that are not negative, if `scale` is not.

    Source: ``jax.random.weibull_min``.
    """
    return drawn_with(_weibull_min, "weibull_min", key, (scale, concentration), shape, dtype)


def double_sided_maxwell(
    key: Tensor, loc: Number, scale: Number, shape: Shape = (), dtype: Dtype = None
) -> Tensor:
    """Samples from the Maxwell distribution, mirrored about `loc`; see `rayleigh`.

    `shape` is prepended to the shape that the parameters broadcast to; ``()`` means that shape,
    which then appears twice.

    Args:
        key: int32[2].
        loc: centre of the distribution.
        scale: factor of the distances from `loc`; broadcasts with it.
        shape: leading axes of the result.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape, *s]`` of `dtype`, where `s` is the shape that `loc` and `scale` broadcast to; or
        ``[*s, *s]``, if `shape` is ``()``.

    Source: ``jax.random.double_sided_maxwell``.
    """
    name = "double_sided_maxwell"
    key, dims, dtype = as_key(key, name), as_shape(shape, name), floating(dtype, name)
    loc, scale = numbers(dtype, loc, scale)
    own = shape_or(None, name, loc, scale)
    return _double_sided_maxwell(key, loc, scale, shape=(*(dims or own), *own), dtype=dtype)


def triangular(
    key: Tensor,
    left: Number,
    mode: Number,
    right: Number,
    shape: Shape | None = None,
    dtype: Dtype = None,
) -> Tensor:
    """Samples from the triangular distribution on ``[left, right]``; see `rayleigh`.

    Args:
        key: int32[2].
        left: lower end of the interval; broadcasts to `shape`.
        mode: where the density is highest; broadcasts to `shape`.
        right: upper end of the interval; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`.

    Source: ``jax.random.triangular``.
    """
    return drawn_with(_triangular, "triangular", key, (left, mode, right), shape, dtype)


def wald(key: Tensor, mean: Number, shape: Shape | None = None, dtype: Dtype = None) -> Tensor:
    """Samples from the Wald (inverse Gaussian) distribution with scale 1; see `rayleigh`.

    Args:
        key: int32[2].
        mean: positive; broadcasts to `shape`.
        shape: shape of the result; None means the shape of the parameters.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`.

    Source: ``jax.random.wald``.
    """
    return drawn_with(_wald, "wald", key, (mean,), shape, dtype)


# -- programs -----------------------------------------------------------------------------------

_program = partial(jit, static_argnames=("shape", "dtype"))


@_program
def _exponential(key: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    return -torch.log1p(-uniform(key, shape, dtype))


@_program
def _laplace(key: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    u = uniform(key, shape, dtype, -1.0 + torch.finfo(dtype).eps / 2, 1.0)
    return u.sign() * torch.log1p(-u.abs())


@_program
def _logistic(key: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    u = uniform(key, shape, dtype, torch.finfo(dtype).tiny, 1.0)
    return torch.log(u) - torch.log1p(-u)


@_program
def _cauchy(key: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    u = uniform(key, shape, dtype, torch.finfo(dtype).eps, 1.0)
    return torch.tan(math.pi * (u - 0.5))


@_program
def _maxwell(key: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.linalg.vector_norm(normal(key, (*shape, 3), dtype), dim=-1)


@_program
def _rayleigh(key: Tensor, scale: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    return scale.to(key.device, dtype) * torch.sqrt(-2 * torch.log(uniform(key, shape, dtype)))


@_program
def _pareto(key: Tensor, b: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.exp(_exponential(key, shape=shape, dtype=dtype) / b.to(key.device, dtype))


@_program
def _lognormal(key: Tensor, sigma: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.exp(normal(key, shape, dtype) * sigma.to(key.device, dtype))


@_program
def _weibull_min(
    key: Tensor, scale: Tensor, concentration: Tensor, shape: Shape, dtype: torch.dtype
) -> Tensor:
    scale, concentration = (t.to(key.device, dtype) for t in (scale, concentration))
    drawn = -torch.log1p(-uniform(key, shape, dtype))
    return drawn ** (1.0 / concentration) * scale


@_program
def _double_sided_maxwell(
    key: Tensor, loc: Tensor, scale: Tensor, shape: Shape, dtype: torch.dtype
) -> Tensor:
    loc, scale = loc.to(key.device, dtype), scale.to(key.device, dtype)
    size, sign = split(key)
    return rademacher(sign, shape, dtype) * _maxwell(size, shape=shape, dtype=dtype) * scale + loc


@_program
def _triangular(
    key: Tensor, left: Tensor, mode: Tensor, right: Tensor, shape: Shape, dtype: torch.dtype
) -> Tensor:
    left, mode, right = (t.to(key.device, dtype) for t in (left, mode, right))
    u = uniform(key, shape, dtype)
    rising = left + torch.sqrt(u * (right - left) * (mode - left))
    falling = right - torch.sqrt((1 - u) * (right - left) * (right - mode))
    return torch.where(u < (mode - left) / (right - left), rising, falling)


@_program
def _wald(key: Tensor, mean: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    mean = mean.to(key.device, dtype)
    first, second = split(key)
    y = normal(first, shape, dtype).square()
    square = mean * mean
    x = mean + square * y / 2 - mean / 2 * torch.sqrt(4 * mean * y + square * y.square())
    return torch.where(uniform(second, shape, dtype) <= mean / (mean + x), x, square / x)
