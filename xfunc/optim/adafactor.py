"""`adafactor`, and the transformations that it is made of."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from xfunc import tree
from xfunc.optim.scale import add_decayed_weights, scale, scale_by_learning_rate
from xfunc.optim.schedules import Rate, Schedule
from xfunc.optim.transformation import (
    GradientTransformation,
    Mask,
    at_least_float32,
    chain,
    check_params,
    stateless,
    zero_count,
    zeros_like,
)
from xfunc.tree import PyTree


class FactoredState(NamedTuple):
    """The state of `scale_by_factored_rms`: running means of the squares of the gradients.

    For a factored weight ``[..., m, n]``, `v_row` is the mean over `n`, ``[..., m]``, `v_col` the
    mean over `m`, ``[..., n]``, and `v` is a placeholder ``[1]``. For others, `v` has the shape of
    the weight, and `v_row` and `v_col` are the placeholders.

    Semantics: ``optax.FactoredState``.
    """

    count: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    v_row: PyTree
    v_col: PyTree
    v: PyTree


def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: float = 0.8,
    min_dim_size_to_factor: int = 128,
    epsilon: float = 1e-30,
) -> GradientTransformation:
    """Divide the updates by the root of a running mean of their squares, factored for matrices.

    The mean of a matrix is estimated from the means of its rows and columns. The state is float32,
    or float64 for weights that are.

    Args:
        factored: whether to factor at all.
        decay_rate: after `t` updates the mean gets ``t**-decay_rate`` of the new squares.
        min_dim_size_to_factor: the last two dimensions of a weight are factored if both are at
            least this large.
        epsilon: added to the squares.

    Returns:
        A transformation. Its state has the fields `count`, `v_row`, `v_col` and `v`.

    Example:
        >>> opt = xf.optim.scale_by_factored_rms(min_dim_size_to_factor=2)
        >>> opt.update(torch.full((2, 2), 3.0), opt.init(torch.zeros(2, 2)))[0]
        tensor([[1., 1.],
                [1., 1.]])

    Semantics: ``optax.scale_by_factored_rms``, which factors the two largest dimensions.
    """

    def is_factored(x: Tensor) -> bool:
        return factored and x.ndim > 1 and min(x.shape[-2:]) >= min_dim_size_to_factor

    def init(params: PyTree) -> FactoredState:
        def zeros(p: Tensor, dim: int | None) -> Tensor:
            dtype = at_least_float32(p.dtype)
            if is_factored(p) == (dim is None):
                return torch.zeros(1, dtype=dtype)
            return zeros_like(p if dim is None else p.mean(dim), dtype)

        trees = (tree.map(lambda p, d=dim: zeros(p, d), params) for dim in (-1, -2, None))
        return FactoredState(zero_count(), *trees)

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None
    ) -> tuple[PyTree, FactoredState]:
        count = state.count + 1

        @functools.cache
        def share(dtype: torch.dtype) -> Tensor:
            return count.to(dtype) ** -decay_rate

        def after(old: Tensor, u: Tensor, dim: int | None) -> Tensor:
            if is_factored(u) == (dim is None):
                return old
            squares = u.to(old.dtype).square() + epsilon
            new = squares if dim is None else squares.mean(dim)
            return old + share(old.dtype) * (new - old)

        def scaled(u: Tensor, row: Tensor, col: Tensor, full: Tensor) -> Tensor:
            u = u.to(full.dtype)
            if not is_factored(u):
                return u * full.rsqrt()
            row = row / row.mean(-1, keepdim=True)
            return u * row.rsqrt()[..., None] * col.rsqrt()[..., None, :]

        v_row, v_col, v = (
            tree.map(lambda old, u, d=dim: after(old, u, d), part, updates)
            for part, dim in ((state.v_row, -1), (state.v_col, -2), (state.v, None))
        )
        return tree.map(scaled, updates, v_row, v_col, v), FactoredState(count, v_row, v_col, v)

    return GradientTransformation(init, update)


def clip_by_block_rms(threshold: float) -> GradientTransformation:
    """Scale each update down if its root mean square exceeds a limit.

    Args:
        threshold: the largest root mean square that the update of a weight may have.

    Returns:
        A transformation without state.

    Example:
        >>> opt = xf.optim.clip_by_block_rms(1.0)
        >>> opt.update([torch.full((2,), 3.0), torch.full((2,), 0.5)], opt.init(None))[0]
        [tensor([1., 1.]), tensor([0.5000, 0.5000])]

    Semantics: ``optax.clip_by_block_rms``.
    """
    return stateless(
        lambda updates, params: tree.map(
            lambda u: u / (_rms(u) / threshold).clamp(min=1.0), updates
        )
    )


def scale_by_param_block_rms(min_scale: float = 1e-3) -> GradientTransformation:
    """Multiply each update by the root mean square of its weight.

    Args:
        min_scale: the least number to multiply by.

    Returns:
        A transformation without state. Its `update` needs `params`.

    Raises:
        ValueError: in `update`: there are no `params`.

    Example:
        >>> opt = xf.optim.scale_by_param_block_rms()
        >>> opt.update(torch.ones(2), opt.init(None), torch.full((2,), 3.0))[0]
        tensor([3., 3.])

    Semantics: ``optax.scale_by_param_block_rms``.
    """

    def update(updates: PyTree, params: PyTree) -> PyTree:
        check_params(params, "scale_by_param_block_rms")
        return tree.map(lambda u, p: u * _rms(p).clamp(min=min_scale), updates, params)

    return stateless(update)


def adafactor(
    learning_rate: Rate | Schedule | None = None,
    min_dim_size_to_factor: int = 128,
    decay_rate: float = 0.8,
    multiply_by_parameter_scale: bool = True,
    clipping_threshold: float | None = 1.0,
    weight_decay_rate: Rate | None = None,
    eps: float = 1e-30,
    factored: bool = True,
    weight_decay_mask: Mask | None = None,
) -> GradientTransformation:
    """Adafactor: adaptive learning rates with less state than the weights have.

    `torch.optim.Adafactor(lr=lr, weight_decay=w)` is this with the learning rate
    ``min(lr, 1 / sqrt(count + 1))``, ``min_dim_size_to_factor=1`` and ``weight_decay_rate=lr * w``.

    Source: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018.

    Args:
        learning_rate: a number, a tensor of shape ``[]``, or a schedule of it; None: 1.
        min_dim_size_to_factor: the last two dimensions of a weight are factored if both are at
            least this large.
        decay_rate: see `scale_by_factored_rms`.
        multiply_by_parameter_scale: whether to multiply each update by the root mean square of its
            weight, or by 0.001 if that is more.
        clipping_threshold: see `clip_by_block_rms`; None: do not clip.
        weight_decay_rate: the fraction of each weight that a step subtracts; None: no decay.
        eps: added to the squares of the gradients.
        factored: whether to factor at all.
        weight_decay_mask: which weights decay, as for `masked`; None: all do.

    Returns:
        A transformation whose updates `apply_updates` adds to the weights.

    Raises:
        ValueError: in `update`: there are no `params`, although the weights count.

    Example:
        >>> opt = xf.optim.adafactor(0.1)
        >>> params = torch.full((2,), 3.0)
        >>> opt.update(torch.tensor([2.0, -3.0]), opt.init(params), params)[0]
        tensor([-0.3000,  0.3000])

    Semantics: ``optax.adafactor``, without momentum and `decay_offset`.
    """
    parts = [scale_by_factored_rms(factored, decay_rate, min_dim_size_to_factor, eps)]
    if clipping_threshold is not None:
        parts.append(clip_by_block_rms(clipping_threshold))
    if learning_rate is not None:
        parts.append(scale_by_learning_rate(learning_rate, flip_sign=False))
    if multiply_by_parameter_scale:
        parts.append(scale_by_param_block_rms())
    if weight_decay_rate is not None:
        parts.append(add_decayed_weights(weight_decay_rate, weight_decay_mask))
    return chain(*parts, scale(-1.0))


def _rms(x: Tensor) -> Tensor:
    """The root mean square, of shape ``[]``."""
    return x.to(at_least_float32(x.dtype)).square().mean().sqrt()
