"""Further continuous distributions, each made of draws of the simpler ones as in `jax.random`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from xfunc.random.checks import (
    Number,
    Shape,
    Tensor,
    as_key,
    as_shape,
    fail,
    floating,
    numbers,
    shape_or,
)
from xfunc.random.continuous import normal, uniform
from xfunc.random.discrete import bernoulli
from xfunc.transforms.jit import jit

Dtype = torch.dtype | None


def exponential(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Numbers from the exponential distribution of rate 1.

    Args:
        key: int32[2].
        shape: of the result.
        dtype: a floating dtype; None is torch's default.

    Raises:
        TypeError: the key is no key, or a dtype or shape is not one of those.

    Source: ``jax.random.exponential``.
    """
    return _drawn(_exponential, "exponential", key, shape, dtype)


def laplace(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Numbers from the Laplace distribution of mean 0 and scale 1; see `exponential`.

    Source: ``jax.random.laplace``.
    """
    return _drawn(_laplace, "laplace", key, shape, dtype)


def logistic(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Numbers from the logistic distribution of mean 0 and scale 1; see `exponential`.

    Source: ``jax.random.logistic``.
    """
    return _drawn(_logistic, "logistic", key, shape, dtype)


def cauchy(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Numbers from the Cauchy distribution of location 0 and scale 1; see `exponential`.

    Source: ``jax.random.cauchy``.
    """
    return _drawn(_cauchy, "cauchy", key, shape, dtype)


def maxwell(key: Tensor, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Numbers from the Maxwell distribution of scale 1; see `exponential`.

    Source: ``jax.random.maxwell``.
    """
    return _drawn(_maxwell, "maxwell", key, shape, dtype)


def rademacher(key: Tensor, shape: Shape = (), dtype: torch.dtype = torch.int32) -> Tensor:
    """1 or -1, with equal probability.

    Args:
        key: int32[2].
        shape: of the result.
        dtype: of the result: one with a sign.

    Raises:
        TypeError: the key is no key, or a dtype or shape is not one of those.

    Source: ``jax.random.rademacher``.
    """
    if not dtype.is_signed:
        fail(TypeError, f"rademacher was given the dtype {dtype}", "choose one with a sign.")
    drawn = bernoulli(as_key(key, "rademacher"), 0.5, as_shape(shape, "rademacher"))
    return drawn.to(dtype) * 2 - 1


def rayleigh(key: Tensor, scale: Number, shape: Shape | None = None, dtype: Dtype = None) -> Tensor:
    """Numbers from the Rayleigh distribution.

    Args:
        key: int32[2].
        scale: broadcasts to `shape`.
        shape: of the result; None is that of the parameters.
        dtype: a floating dtype; None is torch's default.

    Raises:
        TypeError: the key is no key, or a dtype or shape is not one of those.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.rayleigh``.
    """
    return _scaled(_rayleigh, "rayleigh", key, (scale,), shape, dtype)


def pareto(key: Tensor, b: Number, shape: Shape | None = None, dtype: Dtype = None) -> Tensor:
    """Numbers from the Pareto distribution of shape parameter `b` and scale 1; see `rayleigh`.

    Source: ``jax.random.pareto``.
    """
    return _scaled(_pareto, "pareto", key, (b,), shape, dtype)


def lognormal(
    key: Tensor, sigma: Number = 1.0, shape: Shape | None = None, dtype: Dtype = None
) -> Tensor:
    """The exponentials of normal numbers of deviation `sigma`; see `rayleigh`.

    Source: ``jax.random.lognormal``.
    """
    return _scaled(_lognormal, "lognormal", key, (sigma,), shape, dtype)


def weibull_min(
    key: Tensor, scale: Number, concentration: Number, shape: Shape = (), dtype: Dtype = None
) -> Tensor:
    """Numbers from the Weibull distribution; see `rayleigh`.

    Source: ``jax.random.weibull_min``.
    """
    return _scaled(_weibull_min, "weibull_min", key, (scale, concentration), shape, dtype)


def multivariate_normal(
    key: Tensor,
    mean: Tensor,
    cov: Tensor,
    shape: Shape | None = None,
    dtype: Dtype = None,
    method: str = "cholesky",
) -> Tensor:
    """Vectors from a normal distribution.

    Args:
        key: int32[2].
        mean: ``[..., n]``.
        cov: ``[..., n, n]``, symmetric and positive definite.
        shape: of the result without its last axis, of size n; None is that of the axes in front.
        dtype: a floating dtype; None is torch's default.
        method: how to take the root of `cov`: by ``"cholesky"``, ``"eigh"`` or ``"svd"``. The last
            two take a semi-definite `cov`; their vectors are determined only up to signs, and so
            are the draws.

    Raises:
        TypeError: the key is no key, or a dtype or shape is not one of those.
        ValueError: the arguments do not fit each other or the shape, or an unknown method.

    Source: ``jax.random.multivariate_normal``.
    """
    name = "multivariate_normal"
    key, dtype = as_key(key, name), floating(dtype, name)
    if method not in _ROOTS:
        fail(ValueError, f"{name} has method={method!r}", f"choose from {', '.join(_ROOTS)}.")
    mean, cov = numbers(dtype, mean, cov)
    if not mean.ndim or tuple(cov.shape[-2:]) != (mean.shape[-1],) * 2:
        fail(
            ValueError,
            f"{name} was given a mean of the shape {tuple(mean.shape)} and a covariance of the "
            f"shape {tuple(cov.shape)}",
            "give [..., n] and [..., n, n].",
        )
    dims = shape_or(shape, name, mean[..., 0], cov[..., 0, 0])
    return _multivariate_normal(key, mean, cov, shape=dims, dtype=dtype, method=method)


# -- programs -----------------------------------------------------------------------------------

Program = Callable[..., Tensor]
_program = partial(jit, static_argnames=("shape", "dtype"))


def _drawn(program: Program, name: str, key: Tensor, shape: Shape, dtype: Dtype) -> Tensor:
    return program(as_key(key, name), shape=as_shape(shape, name), dtype=floating(dtype, name))


def _scaled(
    program: Program,
    name: str,
    key: Tensor,
    parameters: tuple[Number, ...],
    shape: Shape | None,
    dtype: Dtype,
) -> Tensor:
    key, dtype = as_key(key, name), floating(dtype, name)
    given = numbers(dtype, *parameters)
    return program(key, *given, shape=shape_or(shape, name, *given), dtype=dtype)


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


def _of_eigh(cov: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(cov)
    return vectors * values.sqrt().unsqueeze(-2)


def _of_svd(cov: Tensor) -> Tensor:
    vectors, values, _ = torch.linalg.svd(cov)
    return vectors * values.sqrt().unsqueeze(-2)


_ROOTS: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky": torch.linalg.cholesky,
    "eigh": _of_eigh,
    "svd": _of_svd,
}


@partial(jit, static_argnames=("shape", "dtype", "method"))
def _multivariate_normal(
    key: Tensor, mean: Tensor, cov: Tensor, shape: Shape, dtype: torch.dtype, method: str
) -> Tensor:
    mean, cov = mean.to(key.device, dtype), cov.to(key.device, dtype)
    drawn = normal(key, (*shape, mean.shape[-1]), dtype)
    return mean + (_ROOTS[method](cov) @ drawn.unsqueeze(-1)).squeeze(-1)
