"""Muon for the matrices within layers, and AdamW for everything else, as torch.optim computes both.

Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; for the scale
of its updates, Liu et al., Muon is Scalable for LLM Training, 2025.
"""

from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor
from torch.optim._muon import muon

import xfunc as xf

from .optimizer import AdamWState, Rate, Tree, adamw_init, adamw_update, decay_of, wide

# The defaults of `torch.optim.Muon`, except that updates have the size of AdamW's.
_OPTIONS: Any = {
    "foreach": False,
    "nesterov": True,
    "ns_coefficients": (3.4445, -4.775, 2.0315),
    "ns_steps": 5,
    "eps": 1e-7,
    "adjust_lr_fn": "match_rms_adamw",
    "has_complex": False,
}


class MuonState(NamedTuple):
    """Updates made so far, and running means of the gradients and, outside layers, their squares.

    A matrix within the layers has an empty tensor in place of the squares.
    """

    step: Int[Tensor, ""]
    mean: Tree
    square: Tree


def is_within(params: Tree) -> Tree:
    """For each parameter, whether Muon updates it: stacked matrices are, adapters too."""
    return {
        name: xf.tree.map(lambda p, inside=name == "layers": inside and p.ndim > 2, tree)
        for name, tree in params.items()
    }


def muon_init(params: Tree) -> MuonState:
    """The state before the first update."""

    step, mean, square = adamw_init(params)
    square = xf.tree.map(
        lambda s, within: s.new_zeros(0) if within else s, square, is_within(params)
    )
    return MuonState(step, mean, square)


def muon_update(
    grads: Tree,
    state: MuonState,
    params: Tree,
    lr: Rate,
    *,
    momentum: float = 0.95,
    weight_decay: float = 0.1,
    decayed: Tree | None = None,
    **options: float,
) -> tuple[Tree, MuonState]:
    """New parameters and state.

    Each layer's matrix, and each expert's, is updated by itself. `options` are those of
    `adamw_update`; `decayed` is as there.
    """

    def stacked(p: Tensor, g: Tensor, m: Tensor, decay: float) -> tuple[Tensor, Tensor]:
        def fun(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
            made, mean = wide(p).clone(), m.clone()  # torch's function changes them in place.
            how: Any = {"lr": lr, "weight_decay": decay, "momentum": momentum} | _OPTIONS
            muon([made], [wide(g)], [mean], **how)
            return made.to(p.dtype), mean

        for _ in range(p.ndim - 2):
            fun = xf.vmap(fun)
        return fun(p, g, m)

    leaves, treedef = xf.tree.flatten(params)
    within = xf.tree.leaves(is_within(params))
    trees = (grads, state.mean, state.square, decay_of(params, weight_decay, decayed))
    grad, mean, square, decay = (xf.tree.leaves(tree) for tree in trees)
    rest = [i for i, inside in enumerate(within) if not inside]
    grads, means, squares, old = ([x[i] for i in rest] for x in (grad, mean, square, leaves))
    decayed = [decay[i] > 0 for i in rest]
    new, adamw = adamw_update(
        grads,
        AdamWState(state.step, means, squares),
        old,
        lr,
        weight_decay=weight_decay,
        decayed=decayed,
        **options,
    )
    for i, *found in zip(rest, new, adamw.mean, adamw.square, strict=True):
        leaves[i], mean[i], square[i] = found
    for i, inside in enumerate(within):
        if inside:
            leaves[i], mean[i] = stacked(leaves[i], grad[i], mean[i], decay[i])
    params, *means = (xf.tree.unflatten(treedef, x) for x in (leaves, mean, square))
    return params, MuonState(adamw.step, *means)
