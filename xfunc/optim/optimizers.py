"""Optimizers as chains: `sgd`, `adam`, `adamw`, `lion`."""

from __future__ import annotations

import torch

from xfunc.optim.scale import (
    add_decayed_weights,
    scale_by_adam,
    scale_by_learning_rate,
    scale_by_lion,
    trace,
)
from xfunc.optim.schedules import Rate, Schedule
from xfunc.optim.transformation import GradientTransformation, Mask, chain


def sgd(
    learning_rate: Rate | Schedule,
    momentum: float | None = None,
    nesterov: bool = False,
    accumulator_dtype: torch.dtype | None = None,
) -> GradientTransformation:
    """Stochastic gradient descent, as `torch.optim.SGD` computes it.

    Args:
        learning_rate: a number, a tensor of shape ``[]``, or a schedule of it.
        momentum: decay of the sum of the gradients; None: no momentum.
        nesterov: whether momentum looks one step ahead.
        accumulator_dtype: dtype of the sum; None: that of the weights.

    Returns:
        A transformation whose updates `apply_updates` adds to the weights.

    Example:
        >>> opt = xf.optim.sgd(0.1, momentum=0.9)
        >>> opt.update(torch.ones(2), opt.init(torch.zeros(2)))[0]
        tensor([-0.1000, -0.1000])

    Semantics: ``optax.sgd``.
    """
    rate = scale_by_learning_rate(learning_rate)
    if momentum is None:
        return chain(rate)
    return chain(trace(momentum, nesterov, accumulator_dtype), rate)


def adam(
    learning_rate: Rate | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    *,
    nu_dtype: torch.dtype | None = None,
) -> GradientTransformation:
    """Adam, as `torch.optim.Adam` computes it.

    Args:
        learning_rate: a number, a tensor of shape ``[]``, or a schedule of it.
        b1: decay of the mean of the gradients.
        b2: decay of the mean of their squares.
        eps: added to the root of that mean.
        eps_root: added below the root.
        mu_dtype: dtype of the mean of the gradients; None: that of the weights.
        nu_dtype: dtype of the mean of their squares; None: that of the weights.

    Returns:
        A transformation whose updates `apply_updates` adds to the weights.

    Example:
        >>> opt = xf.optim.adam(0.1)
        >>> opt.update(torch.tensor([2.0, -3.0]), opt.init(torch.zeros(2)))[0]
        tensor([-0.1000,  0.1000])

    Semantics: ``optax.adam``; `nu_dtype` is xfunc's own.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nu_dtype=nu_dtype),
        scale_by_learning_rate(learning_rate),
    )


def adamw(
    learning_rate: Rate | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: torch.dtype | None = None,
    weight_decay: Rate = 1e-4,
    mask: Mask | None = None,
    *,
    nu_dtype: torch.dtype | None = None,
) -> GradientTransformation:
    """Adam with decoupled weight decay, as `torch.optim.AdamW` computes it.

    Args:
        learning_rate: a number, a tensor of shape ``[]``, or a schedule of it.
        b1: decay of the mean of the gradients.
        b2: decay of the mean of their squares.
        eps: added to the root of that mean.
        eps_root: added below the root.
        mu_dtype: dtype of the mean of the gradients; None: that of the weights.
        weight_decay: the fraction of each weight that a step subtracts, times the learning rate.
        mask: which weights decay, as for `masked`; None: all do.
        nu_dtype: dtype of the mean of their squares; None: that of the weights.

    Returns:
        A transformation whose updates `apply_updates` adds to the weights. Its `update` needs
        `params`.

    Raises:
        ValueError: in `update`: there are no `params`.

    Example:
        >>> opt = xf.optim.adamw(0.1, weight_decay=0.5)
        >>> params = torch.ones(1)
        >>> opt.update(torch.tensor([2.0]), opt.init(params), params)[0]
        tensor([-0.1500])

    Semantics: ``optax.adamw``; `nu_dtype` is xfunc's own.
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nu_dtype=nu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )


def lion(
    learning_rate: Rate | Schedule,
    b1: float = 0.9,
    b2: float = 0.99,
    mu_dtype: torch.dtype | None = None,
    weight_decay: Rate = 1e-3,
    mask: Mask | None = None,
) -> GradientTransformation:
    """Lion: steps of one size, in the direction of the sign of a mean of the gradients.

    Source: Chen et al., Symbolic Discovery of Optimization Algorithms, 2023 (arXiv:2302.06675).

    Args:
        learning_rate: a number, a tensor of shape ``[]``, or a schedule of it.
        b1: weight of the running mean in the update.
        b2: decay of the running mean.
        mu_dtype: dtype of the running mean; None: that of the weights.
        weight_decay: the fraction of each weight that a step subtracts, times the learning rate.
        mask: which weights decay, as for `masked`; None: all do.

    Returns:
        A transformation whose updates `apply_updates` adds to the weights. Its `update` needs
        `params`.

    Raises:
        ValueError: in `update`: there are no `params`.

    Example:
        >>> opt = xf.optim.lion(0.1, weight_decay=0.0)
        >>> params = torch.zeros(2)
        >>> opt.update(torch.tensor([2.0, -3.0]), opt.init(params), params)[0]
        tensor([-0.1000,  0.1000])

    Semantics: ``optax.lion``.
    """
    return chain(
        scale_by_lion(b1, b2, mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
