"""Schedule-free AdamW: an average of the weights takes the place of a falling learning rate.

There are three sequences of weights. `fast` (z) takes AdamW's steps without momentum; the
parameters (x) are its mean, and are what is evaluated; gradients are taken between the two (y).
The state of training holds x and z, so that whatever reads parameters reads x.

Source: Defazio et al., The Road Less Scheduled, 2024 (arXiv:2405.15682), algorithm 1. As in its
authors' package, the mean of squares is corrected as in Adam, rather than the learning rate, which
they found unstable.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf

from ..model.attention import wide
from .optimizer import Rate, Tree, adamw_init, descent


class ScheduleFreeState(NamedTuple):
    """Updates made so far, and what the next ones depend on.

    `total` is the sum of the squared learning rates, which are the weights in the mean; `square` is
    the running mean of the squared gradients.
    """

    step: Int[Tensor, ""]
    total: Float[Tensor, ""]
    fast: Tree
    square: Tree


def schedule_free_init(params: Tree) -> ScheduleFreeState:
    """The state before the first update."""
    step, _, square = adamw_init(params)
    total = torch.zeros((), dtype=torch.float32)
    return ScheduleFreeState(step, total, xf.tree.map(wide, params), square)


def between(params: Tree, state: ScheduleFreeState, beta1: float) -> Tree:
    """The weights at which gradients are taken, in the dtype of the parameters."""
    return xf.tree.map(lambda x, z: torch.lerp(z, wide(x), beta1).to(x.dtype), params, state.fast)


def schedule_free_update(
    grads: Tree,
    state: ScheduleFreeState,
    params: Tree,
    lr: Rate,
    *,
    beta1: float = 0.9,
    beta2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    decayed: Tree | None = None,
) -> tuple[Tree, ScheduleFreeState]:
    """New parameters and state, from gradients at `between(params, state, beta1)`.

    `lr` should rise and then stay; `decayed` is as in `optimizer.adamw_update`.
    """
    adam = xf.optim.scale_by_adam(0.0, beta2, eps)  # so that the mean of gradients is the last one
    last = xf.optim.ScaleByAdamState(state.step, grads, state.square)
    updates, (step, _, square) = adam.update(grads, last)
    wides = xf.tree.map(wide, params)
    updates = descent(updates, between(wides, state, beta1), lr, weight_decay, decayed)
    fast = xf.optim.apply_updates(state.fast, updates)
    total = state.total + lr**2
    share = lr**2 / total
    new = xf.tree.map(lambda p, x, z: (x + share * (z - x)).to(p.dtype), params, wides, fast)
    return new, ScheduleFreeState(step, total, fast, square)
