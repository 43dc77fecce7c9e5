"""The transformations that optimizers are made of: clipping, scaling, moments, weight decay."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from xfunc import tree
from xfunc.optim.schedules import Rate, Schedule
from xfunc.optim.transformation import (
    GradientTransformation,
    Mask,
    at_least_float32,
    cast_like,
    check_params,
    optionally_masked,
    running_mean,
    stateless,
    zero_count,
    zeros_like,
)
from xfunc.tree import PyTree


class ScaleByScheduleState(NamedTuple):
    """The state of `scale_by_schedule`: the number of updates so far."""

    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]


class TraceState(NamedTuple):
    """The state of `trace`: the decaying sum of the updates so far."""

    trace: PyTree


class ScaleByAdamState(NamedTuple):
    """The state of `scale_by_adam`: the number of updates, and running means of the gradients and
    of their squares.

    Semantics: ``optax.ScaleByAdamState``.
    """

    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    mu: PyTree
    nu: PyTree


class ScaleByLionState(NamedTuple):
    """The state of `scale_by_lion`: the running mean of the gradients."""

    mu: PyTree


def global_norm(updates: PyTree) -> Tensor:
    """The Euclidean norm of all leaves together.

    Args:
        updates: a tree of tensors of any shapes.

    Returns:
        A tensor of shape ``[]``, float32, or float64 if a leaf is. It is computed in that dtype.

    Example:
        >>> xf.optim.global_norm({"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
        tensor(5.)

    Semantics: ``optax.global_norm``.
    """
    squares = [_squares(u.to(at_least_float32(u.dtype))).sum() for u in tree.leaves(updates)]
    return sum(squares, torch.zeros((), dtype=torch.float32)).sqrt()


def clip_by_global_norm(max_norm: float) -> GradientTransformation:
    """Scale all updates down by one factor if their global norm exceeds a limit.

    Args:
        max_norm: the largest norm that the updates may have together.

    Returns:
        A transformation without state.

    Example:
        >>> opt = xf.optim.clip_by_global_norm(1.0)
        >>> opt.update(torch.tensor([3.0, 4.0]), opt.init(None))[0]
        tensor([0.6000, 0.8000])

    Semantics: ``optax.clip_by_global_norm``.
    """

    def update(updates: PyTree, params: PyTree) -> PyTree:
        factor = max_norm / global_norm(updates).clamp(min=max_norm)
        return tree.map(lambda u: u * factor, updates)

    return stateless(update)


def scale(step_size: Rate) -> GradientTransformation:
    """Multiply the updates by a number.

    Args:
        step_size: a number, or a tensor of shape ``[]``.

    Returns:
        A transformation without state.

    Example:
        >>> opt = xf.optim.scale(-0.5)
        >>> opt.update(torch.ones(2), opt.init(None))[0]
        tensor([-0.5000, -0.5000])

    Semantics: ``optax.scale``.
    """
    return stateless(lambda updates, params: tree.map(lambda u: step_size * u, updates))


def scale_by_schedule(step_size_fn: Schedule) -> GradientTransformation:
    """Multiply the updates by a number that depends on how many there have been.

    Args:
        step_size_fn: from the number of earlier updates, an int32 tensor of shape ``[]``, to a
            number or a tensor of shape ``[]``.

    Returns:
        A transformation. Its state has one field, `count`.

    Example:
        >>> opt = xf.optim.scale_by_schedule(xf.optim.linear_schedule(1.0, 0.0, 2))
        >>> state = opt.init(None)
        >>> updates, state = opt.update(torch.ones(1), state)
        >>> opt.update(torch.ones(1), state)[0]
        tensor([0.5000])

    Semantics: ``optax.scale_by_schedule``.
    """

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None
    ) -> tuple[PyTree, ScaleByScheduleState]:
        step_size = step_size_fn(state.count)
        return (
            tree.map(lambda u: step_size * u, updates),
            ScaleByScheduleState(state.count + 1),
        )

    return GradientTransformation(lambda params: ScaleByScheduleState(zero_count()), update)


def scale_by_learning_rate(
    learning_rate: Rate | Schedule, *, flip_sign: bool = True
) -> GradientTransformation:
    """Multiply the updates by a learning rate, and by -1, so that adding them descends.

    Args:
        learning_rate: a number, a tensor of shape ``[]``, or a schedule of it.
        flip_sign: whether to multiply by -1.

    Returns:
        A transformation: `scale`, or `scale_by_schedule` for a schedule.

    Example:
        >>> opt = xf.optim.scale_by_learning_rate(0.5)
        >>> opt.update(torch.ones(2), opt.init(None))[0]
        tensor([-0.5000, -0.5000])

    Semantics: ``optax.scale_by_learning_rate``.
    """
    sign = -1 if flip_sign else 1
    if callable(learning_rate):
        return scale_by_schedule(lambda count: sign * learning_rate(count))
    return scale(sign * learning_rate)


def add_decayed_weights(
    weight_decay: Rate = 0.0, mask: Mask | None = None
) -> GradientTransformation:
    """Add to each update its weight times a number.

    Args:
        weight_decay: the number; a tensor has the shape ``[]``.
        mask: which weights decay, as for `masked`; None: all do.

    Returns:
        A transformation. Its `update` needs `params`.

    Raises:
        ValueError: in `update`: there are no `params`.

    Example:
        >>> opt = xf.optim.add_decayed_weights(0.1, mask={"w": True, "b": False})
        >>> params = {"w": torch.ones(1), "b": torch.ones(1)}
        >>> opt.update(params, opt.init(params), params)[0]
        {'w': tensor([1.1000]), 'b': tensor([1.])}

    Semantics: ``optax.add_decayed_weights``.
    """

    def update(updates: PyTree, params: PyTree) -> PyTree:
        check_params(params, "add_decayed_weights")

        def decayed(u: Tensor, p: Tensor) -> Tensor:
            return u + weight_decay * p.to(torch.promote_types(u.dtype, p.dtype))

        return tree.map(decayed, updates, params)

    return optionally_masked(stateless(update), mask)


def trace(
    decay: float, nesterov: bool = False, accumulator_dtype: torch.dtype | None = None
) -> GradientTransformation:
    """Replace the updates by their decaying sum: momentum.

    Args:
        decay: the factor of the sum at each step.
        nesterov: whether to look one step ahead.
        accumulator_dtype: dtype of the sum; None: that of the weights.

    Returns:
        A transformation. Its state has one field, `trace`, with the shapes of the weights.

    Example:
        >>> opt = xf.optim.trace(decay=0.5)
        >>> updates, state = opt.update(torch.ones(1), opt.init(torch.zeros(1)))
        >>> opt.update(torch.ones(1), state)[0]
        tensor([1.5000])

    Semantics: ``optax.trace``.
    """

    def init(params: PyTree) -> TraceState:
        return TraceState(tree.map(lambda p: zeros_like(p, accumulator_dtype), params))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, TraceState]:
        total = tree.map(lambda t, u: u + decay * t, state.trace, updates)
        ahead = tree.map(lambda t, u: u + decay * t, total, updates) if nesterov else total
        return ahead, TraceState(cast_like(total, state.trace))

    return GradientTransformation(init, update)


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    *,
    nu_dtype: torch.dtype | None = None,
) -> GradientTransformation:
    """Divide a running mean of the gradients by the root of a running mean of their squares.

    Args:
        b1: decay of the mean of the gradients.
        b2: decay of the mean of their squares.
        eps: added to the root.
        eps_root: added below the root, so that the update has a derivative where the gradient is
            zero.
        mu_dtype: dtype of the mean of the gradients; None: that of the weights.
        nu_dtype: dtype of the mean of their squares; None: that of the weights.

    Returns:
        A transformation. Its state has the fields `count`, int32 of shape ``[]``, and `mu` and
        `nu` with the shapes of the weights.

    Example:
        >>> opt = xf.optim.scale_by_adam()
        >>> opt.update(torch.tensor([2.0, -3.0]), opt.init(torch.zeros(2)))[0]
        tensor([ 1.0000, -1.0000])

    Semantics: ``optax.scale_by_adam``; `nu_dtype` is xfunc's own.
    """

    def init(params: PyTree) -> ScaleByAdamState:
        mu = tree.map(lambda p: zeros_like(p, mu_dtype), params)
        nu = tree.map(lambda p: zeros_like(p, nu_dtype or p.dtype.to_real()), params)
        return ScaleByAdamState(zero_count(), mu, nu)

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None
    ) -> tuple[PyTree, ScaleByAdamState]:
        count = state.count + 1

        @functools.cache
        def correction(decay: float, dtype: torch.dtype) -> Tensor | float:
            # 1 - decay**count by expm1: the difference loses digits when decay is near 1.
            return -torch.expm1(count.to(dtype) * math.log(decay)) if decay else 1.0

        def mean_square(n: Tensor, u: Tensor) -> Tensor:
            return running_mean(n, _squares(u.to(torch.promote_types(u.dtype, n.dtype))), b2)

        def direction(m: Tensor, n: Tensor) -> Tensor:
            dtype = at_least_float32(n.dtype)
            root = (n / correction(b2, dtype) + eps_root).sqrt()
            return m / correction(b1, dtype) / (root + eps)

        mu = tree.map(lambda m, u: running_mean(m, u, b1), state.mu, updates)
        nu = tree.map(mean_square, state.nu, updates)
        new = ScaleByAdamState(count, cast_like(mu, state.mu), cast_like(nu, state.nu))
        return tree.map(direction, mu, nu), new

    return GradientTransformation(init, update)


def scale_by_lion(
    b1: float = 0.9, b2: float = 0.99, mu_dtype: torch.dtype | None = None
) -> GradientTransformation:
    """Replace the updates by the sign of their mean with a running mean of the gradients.

    Args:
        b1: weight of the running mean in the update.
        b2: decay of the running mean.
        mu_dtype: dtype of the running mean; None: that of the weights.

    Returns:
        A transformation. Its state has one field, `mu`, with the shapes of the weights.

    Example:
        >>> opt = xf.optim.scale_by_lion()
        >>> opt.update(torch.tensor([2.0, -3.0]), opt.init(torch.zeros(2)))[0]
        tensor([ 1., -1.])

    Semantics: ``optax.scale_by_lion``.
    """

    def init(params: PyTree) -> ScaleByLionState:
        return ScaleByLionState(tree.map(lambda p: zeros_like(p, mu_dtype), params))

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None
    ) -> tuple[PyTree, ScaleByLionState]:
        signs = tree.map(lambda m, u: running_mean(m, u, b1).sign(), state.mu, updates)
        mu = tree.map(lambda m, u: running_mean(m, u, b2).to(m.dtype), state.mu, updates)
        return signs, ScaleByLionState(mu)

    return GradientTransformation(init, update)


def _squares(x: Tensor) -> Tensor:
    """The squared absolute values, which are real."""
    return (x.abs() if x.is_complex() else x).square()
