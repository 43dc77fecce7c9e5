"""Random vectors and matrices, by the algorithms of `jax.random`."""

from __future__ import annotations

from collections.abc import Callable
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
    check_broadcast,
    drawn_with,
    floating,
    numbers,
    shape_or,
)
from xfunc.random.continuous import normal
from xfunc.random.distributions import exponential, rademacher
from xfunc.random.gamma import gamma
from xfunc.random.threefry import split
from xfunc.transforms.jit import jit


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
        shape: shape of the result without its last axis, of size n; None means the leading axes.
        dtype: a floating dtype; None means torch's default.
        method: how to compute the root of `cov`: ``"cholesky"``, ``"eigh"`` or ``"svd"``. The last
            two accept a semi-definite `cov`; their vectors are determined only up to sign, and so
            are the draws.

    Returns:
        ``[*shape, n]`` of `dtype`.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: the arguments do not fit each other or the shape, or the method is unknown.

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


def orthogonal(
    key: Tensor, n: int, shape: Shape = (), dtype: Dtype = None, m: int | None = None
) -> Tensor:
    """Uniformly distributed matrices with orthonormal columns (or rows, if there are fewer).

    Args:
        key: int32[2].
        n: number of rows.
        shape: shape of the result without its last two axes.
        dtype: a floating dtype; None means torch's default.
        m: number of columns; None means `n`.

    Returns:
        ``[*shape, n, m]`` of `dtype`.

    Raises:
        TypeError: the key, dtype, size or shape is invalid.

    Source: ``jax.random.orthogonal``.
    """
    name = "orthogonal"
    key, dims, dtype = as_key(key, name), as_shape(shape, name), floating(dtype, name)
    n, m = as_shape((n, n if m is None else m), name)
    drawn = _orthogonal(key, shape=(*dims, max(n, m), min(n, m)), dtype=dtype)
    return drawn.mT if n < m else drawn


def generalized_normal(key: Tensor, p: Number, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Samples from the distribution with a density proportional to ``exp(-abs(x) ** p)``.

    Args:
        key: int32[2].
        p: positive; broadcasts to `shape`.
        shape: shape of the result.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape]`` of `dtype`.

    Raises:
        TypeError: the key, dtype or shape is invalid.
        ValueError: an argument does not fit the shape.

    Source: ``jax.random.generalized_normal``.
    """
    return drawn_with(_generalized_normal, "generalized_normal", key, (p,), shape, dtype)


def ball(key: Tensor, d: int, p: Number = 2.0, shape: Shape = (), dtype: Dtype = None) -> Tensor:
    """Points uniformly distributed in the unit ball about 0.

    Args:
        key: int32[2].
        d: the ball's dimension.
        p: order of the norm that defines the ball.
        shape: shape of the result without its last axis, of size `d`.
        dtype: a floating dtype; None means torch's default.

    Returns:
        ``[*shape, d]`` of `dtype`: a point along the last axis.

    Raises:
        TypeError: the key, dtype, size or shape is invalid.

    Source: ``jax.random.ball``.
    """
    name = "ball"
    key, dtype = as_key(key, name), floating(dtype, name)
    dims = as_shape((*as_shape(shape, name), d), name)
    (p,) = numbers(dtype, p)
    check_broadcast(name, dims, p)
    return _ball(key, p, shape=dims, dtype=dtype)


# -- programs -----------------------------------------------------------------------------------

_program = partial(jit, static_argnames=("shape", "dtype"))


@_program
def _orthogonal(key: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    q, r = torch.linalg.qr(normal(key, shape, dtype))
    return q * torch.diagonal(r, dim1=-2, dim2=-1).sign().unsqueeze(-2)


@_program
def _generalized_normal(key: Tensor, p: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    p = p.to(key.device, dtype)
    size, sign = split(key)
    return rademacher(sign, shape, dtype) * gamma(size, 1 / p, shape, dtype) ** (1 / p)


@_program
def _ball(key: Tensor, p: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    p = p.to(key.device, dtype)
    first, second = split(key)
    inside = _generalized_normal(first, p, shape=shape, dtype=dtype)
    rest = exponential(second, shape[:-1], dtype).unsqueeze(-1)
    return inside / ((inside.abs() ** p).sum(-1, keepdim=True) + rest) ** (1 / p)


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
