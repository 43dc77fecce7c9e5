"""`muon`: updates of matrices made nearly orthogonal."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from xfunc import tree
from xfunc.optim.optimizers import adamw
from xfunc.optim.scale import add_decayed_weights, scale_by_learning_rate
from xfunc.optim.schedules import Rate, Schedule
from xfunc.optim.transformation import (
    GradientTransformation,
    Mask,
    cast_like,
    chain,
    masked,
    running_mean,
    stateless,
    zeros_like,
)
from xfunc.tree import PyTree

Coefficients = tuple[float, float, float]
_COEFFICIENTS = (3.4445, -4.775, 2.0315)


class MuonState(NamedTuple):
    """The state of `scale_by_muon`: the running mean of the gradients.

    Semantics: ``optax.contrib.MuonState``, without a count.
    """

    mu: PyTree


def scale_by_muon(
    ns_coeffs: Coefficients = _COEFFICIENTS,
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    mu_dtype: torch.dtype | None = None,
    *,
    nesterov: bool = True,
    ns_dtype: torch.dtype | None = torch.bfloat16,
) -> GradientTransformation:
    """Bring the singular values of a running mean of the gradients near 1.

    Each step of the Newton-Schulz iteration maps a singular value ``s`` to
    ``a * s + b * s**3 + c * s**5``.

    Args:
        ns_coeffs: a, b and c.
        ns_steps: the number of steps.
        beta: decay of the running mean.
        eps: the least norm that a matrix is divided by before the first step.
        mu_dtype: dtype of the running mean; None: that of the weights.
        nesterov: whether the mean looks one step ahead.
        ns_dtype: dtype of the iteration; None: that of the mean.

    Returns:
        A transformation of updates ``[..., m, n]``; each matrix ``[m, n]`` counts by itself. Its
        state has one field, `mu`, with the shapes of the weights.

    Example:
        >>> opt = xf.optim.scale_by_muon(ns_coeffs=(1.5, -0.5, 0.0), ns_steps=9, ns_dtype=None)
        >>> opt.update(torch.diag(torch.tensor([2.0, 1.0])), opt.init(torch.zeros(2, 2)))[0]
        tensor([[1., 0.],
                [0., 1.]])

    Semantics: ``optax.contrib.scale_by_muon``, without bias correction, as `torch.optim.Muon`.
    """

    def init(params: PyTree) -> MuonState:
        return MuonState(tree.map(lambda p: zeros_like(p, mu_dtype), params))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, MuonState]:
        mu = tree.map(lambda m, u: running_mean(m, u, beta), state.mu, updates)
        ahead = tree.map(lambda m, u: running_mean(m, u, beta), mu, updates) if nesterov else mu

        def orthogonal(m: Tensor) -> Tensor:
            return _newton_schulz(m.to(ns_dtype or m.dtype), ns_coeffs, ns_steps, eps).to(m.dtype)

        return tree.map(orthogonal, ahead), MuonState(cast_like(mu, state.mu))

    return GradientTransformation(init, update)


def muon(
    learning_rate: Rate | Schedule,
    ns_coeffs: Coefficients = _COEFFICIENTS,
    ns_steps: int = 5,
    beta: float = 0.95,
    eps: float = 1e-8,
    weight_decay: Rate = 0.0,
    weight_decay_mask: Mask | None = None,
    mu_dtype: torch.dtype | None = None,
    *,
    nesterov: bool = True,
    adam_b1: float = 0.9,
    adam_b2: float = 0.999,
    adam_weight_decay: Rate = 0.0,
    consistent_rms: float | None = None,
    muon_mask: Mask | None = None,
    ns_dtype: torch.dtype | None = torch.bfloat16,
) -> GradientTransformation:
    """Muon for matrices, as `torch.optim.Muon` computes it, and AdamW for all other weights.

    Sources: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; Liu et
    al., Muon is Scalable for LLM Training, 2025, for `consistent_rms`.

    Args:
        learning_rate: a number, a tensor of shape ``[]``, or a schedule of it.
        ns_coeffs: see `scale_by_muon`.
        ns_steps: steps of the iteration.
        beta: decay of the running mean of the gradients of matrices.
        eps: the least norm of a matrix; also the `eps` of `adamw`.
        weight_decay: for matrices: the fraction that a step subtracts, times the learning rate.
        weight_decay_mask: which weights decay, as for `masked`; None: all do.
        mu_dtype: dtype of the running means of gradients; None: that of the weights.
        nesterov: whether the mean looks one step ahead.
        adam_b1: `b1` of `adamw`.
        adam_b2: `b2` of `adamw`.
        adam_weight_decay: `weight_decay` of `adamw`.
        consistent_rms: an update ``[m, n]`` is multiplied by ``sqrt(max(1, m / n))``, or, if this
            is given, by ``consistent_rms * sqrt(max(m, n))``; 0.2 gives updates the size of
            AdamW's.
        muon_mask: the weights that are matrices, or stacks ``[..., m, n]`` of them, as for
            `masked`; None: the weights of two dimensions.
        ns_dtype: dtype of the iteration; None: that of the mean.

    Returns:
        A transformation whose updates `apply_updates` adds to the weights. Its `update` needs
        `params`.

    Raises:
        ValueError: in `update`: there are no `params`.

    Example:
        >>> opt = xf.optim.muon(0.1)
        >>> params = {"w": torch.ones(2, 3), "b": torch.ones(3)}
        >>> updates, _ = opt.update(params, opt.init(params), params)
        >>> updates["b"]
        tensor([-0.1000, -0.1000, -0.1000])

    Semantics: ``optax.contrib.muon``, but as `torch.optim.Muon`: without bias correction, for
    weights ``[out, in]``; `nesterov` does not apply to `adamw`. `muon_mask` and `ns_dtype` are
    xfunc's own.
    """

    def is_matrix(weights: PyTree) -> PyTree:
        if muon_mask is None:
            return tree.map(lambda p: p.ndim == 2, weights)
        return muon_mask(weights) if callable(muon_mask) else muon_mask

    def resized(u: Tensor) -> Tensor:
        m, n = u.shape[-2:]
        if consistent_rms is None:
            return u * math.sqrt(max(1, m / n))
        return u * (consistent_rms * math.sqrt(max(m, n)))

    matrices = chain(
        scale_by_muon(
            ns_coeffs, ns_steps, beta, eps, mu_dtype, nesterov=nesterov, ns_dtype=ns_dtype
        ),
        stateless(lambda updates, params: tree.map(resized, updates)),
        add_decayed_weights(weight_decay, weight_decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    others = adamw(
        learning_rate, adam_b1, adam_b2, eps, 0.0, mu_dtype, adam_weight_decay, weight_decay_mask
    )
    return chain(
        masked(matrices, is_matrix),
        masked(others, lambda weights: tree.map(lambda yes: not yes, is_matrix(weights))),
    )


def _newton_schulz(x: Tensor, coefficients: Coefficients, steps: int, eps: float) -> Tensor:
    """`x`, ``[..., m, n]``, with its singular values near 1."""
    a, b, c = coefficients
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x
