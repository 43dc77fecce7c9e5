"""Muon for the matrices within layers, and AdamW for everything else, both of `xf.optim`.

Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; for the scale
of its updates, Liu et al., Muon is Scalable for LLM Training, 2025.
"""

import math

from torch import Tensor

import xfunc as xf

from ..model.parameters import is_stack
from .optimizer import AdamWState, Rate, Tree, adamw_init, descent


def is_within(params: Tree) -> Tree:
    """For each parameter, whether Muon updates it: stacked matrices are, adapters too."""
    return {
        name: xf.tree.map(lambda p, name=name: is_stack(name) and p.ndim > 2, tree)
        for name, tree in params.items()
    }


def muon_init(params: Tree) -> AdamWState:
    """The state before the first update.

    A matrix within the layers has an empty tensor in place of the mean of squares.
    """
    step, mean, square = adamw_init(params)
    square = xf.tree.map(
        lambda s, within: s.new_zeros(0) if within else s, square, is_within(params)
    )
    return AdamWState(step, mean, square)


def muon_update(
    grads: Tree,
    state: AdamWState,
    params: Tree,
    lr: Rate,
    *,
    beta1: float = 0.9,
    beta2: float = 0.95,
    eps: float = 1e-8,
    momentum: float = 0.95,
    weight_decay: float = 0.1,
    decayed: Tree | None = None,
) -> tuple[Tree, AdamWState]:
    """New parameters and state.

    Each layer's matrix, and each expert's, is updated by itself, by a step of the size of AdamW's.
    `decayed` is as in `adamw_update`.
    """
    muon = xf.optim.scale_by_muon(beta=momentum, eps=1e-7)
    adam = xf.optim.scale_by_adam(beta1, beta2, eps)

    def direction(within: bool, g: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if within:
            update, (m,) = muon.update(g, xf.optim.MuonState(m))
            return update * 0.2 * math.sqrt(max(g.shape[-2:])), m, s
        update, (_, m, s) = adam.update(g, xf.optim.ScaleByAdamState(state.step, m, s))
        return update, m, s

    treedef = xf.tree.structure(params)
    trees = is_within(params), grads, state.mean, state.square
    made = map(direction, *map(xf.tree.leaves, trees))
    updates, mean, square = (xf.tree.unflatten(treedef, x) for x in zip(*made, strict=True))
    updates = descent(updates, params, lr, weight_decay, decayed)
    return xf.optim.apply_updates(params, updates), AdamWState(state.step + 1, mean, square)
