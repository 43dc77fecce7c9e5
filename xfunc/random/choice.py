"""`choice`: elements of an array, drawn with or without replacement, as in `jax.random`."""

from __future__ import annotations

import math

import torch

from xfunc.errors import fail
from xfunc.random.checks import MANTISSA, Shape, Tensor, as_key, as_shape, check_mode
from xfunc.random.continuous import gumbel, uniform
from xfunc.random.discrete import permutation, randint


def choice(
    key: Tensor,
    a: int | Tensor,
    shape: Shape = (),
    replace: bool = True,
    p: Tensor | None = None,
    axis: int = 0,
    mode: str | None = None,
) -> Tensor:
    """Elements of `a` along an axis, drawn at random.

    Args:
        key: int32[2].
        a: an array, or a number n for ``torch.arange(n)``.
        shape: shape of the draws, which replaces the axis.
        replace: whether an element may be drawn more than once.
        p: the probability of each element; None means all are equal. Without replacement they
            are weights.
        axis: axis of `a`.
        mode: mode of `gumbel`, which is used for weights without replacement.

    Returns:
        A tensor of the dtype of `a` and its shape, with `shape` in place of the axis; int64
        ``[*shape]``, if `a` is a number.

    Raises:
        TypeError: the key or shape is invalid.
        ValueError: there are fewer elements than draws, or `p` has the wrong size.

    Source: ``jax.random.choice``.
    """
    name = "choice"
    key, dims = as_key(key, name), as_shape(shape, name)
    check_mode(mode or "low", name)
    draws = math.prod(dims)
    if isinstance(a, Tensor) and a.ndim:
        axis %= a.ndim
        a, n = a.to(key.device), a.shape[axis]
    elif isinstance(a, int):
        n = a
    else:
        fail(TypeError, f"{name} was given {a!r}", "give an array with axes, or a Python integer.")
    if draws and n <= 0:
        fail(ValueError, f"{name} was given nothing to draw from", "give at least one element.")
    if not replace and draws > n:
        hint = "draw fewer, or with replace=True."
        fail(ValueError, f"{name} cannot draw {draws} of {n} without replacement", hint)
    if p is None and not replace:
        shuffled = permutation(key, a, axis if isinstance(a, Tensor) else 0)
        places = None
        found = shuffled.narrow(axis if isinstance(a, Tensor) else 0, 0, draws)
    else:
        places = randint(key, dims, 0, max(n, 1)).long() if p is None else None
        if p is not None:
            places = _weighted(key, p, n, dims, draws, replace, mode, name)
        assert places is not None
        places = places.reshape(-1)
        found = places if isinstance(a, int) else a.index_select(axis, places)
    if isinstance(a, int):
        return found.reshape(dims)
    return found.reshape(*a.shape[:axis], *dims, *a.shape[axis + 1 :])


def _weighted(
    key: Tensor,
    p: Tensor,
    n: int,
    dims: tuple[int, ...],
    draws: int,
    replace: bool,
    mode: str | None,
    name: str,
) -> Tensor:
    """Positions, drawn by probabilities or weights."""
    if not isinstance(p, Tensor) or p.dtype not in MANTISSA or tuple(p.shape) != (n,):
        what = f"{p.dtype} of the shape {tuple(p.shape)}" if isinstance(p, Tensor) else f"{p!r}"
        fail(ValueError, f"{name} was given p as {what}", f"give {n} floating numbers.")
    p = p.to(key.device)
    if not replace:
        return torch.topk(gumbel(key, (n,), p.dtype, mode) + torch.log(p), draws)[1]
    total = torch.cumsum(p, 0)
    drawn = total[-1] * (1 - uniform(key, dims, p.dtype))
    return torch.searchsorted(total, drawn.reshape(-1))
