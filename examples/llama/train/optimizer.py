"""Optimizers of `xf.optim`, and learning-rate schedules.

A program of your own can add an optimizer to `OPTIMIZERS`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf
from xfunc.optim import FactoredState, GradientTransformation

from ..model.parameters import is_stack

Tree: TypeAlias = Any  # a pytree of tensors
Rate: TypeAlias = float | Float[Tensor, ""]


class Optimizer(NamedTuple):
    """An optimizer that `train.optimizer` names.

    It is made from a learning rate, the weight decay, a tree that says which weights decay, and the
    options by name.
    """

    make: Callable[..., GradientTransformation]
    options: tuple[str, ...]  # the settings of `Recipe` that it takes


def adamw(
    rate: Rate, decay: float, decayed: Tree, *, beta1: float, beta2: float, eps: float
) -> GradientTransformation:
    """The formula of `torch.optim.AdamW`."""
    return xf.optim.adamw(rate, beta1, beta2, eps, weight_decay=decay, mask=decayed)


def adafactor(rate: Rate, decay: float, decayed: Tree) -> GradientTransformation:
    """Adafactor without momentum and without scaling the learning rate.

    The squares of a matrix are estimated from the means of its rows and columns, and an update
    whose root mean square exceeds one is scaled down to one. Each layer counts by itself.

    Source: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018.
    """
    by_rms = xf.optim.scale_by_factored_rms(min_dim_size_to_factor=1)

    def clipped(u: Tensor) -> Tensor:
        matrix = tuple(range(-min(u.ndim, 2), 0))
        return u / u.square().mean(matrix, keepdim=True).sqrt().clamp(min=1.0)

    def update(grads: Tree, state: Tree, params: Tree = None) -> tuple[Tree, FactoredState]:
        updates, state = by_rms.update(grads, state, params)
        return xf.tree.map(clipped, updates), state

    return xf.optim.chain(
        GradientTransformation(by_rms.init, update),
        xf.optim.add_decayed_weights(decay, decayed),
        xf.optim.scale_by_learning_rate(rate),
    )


def muon(
    rate: Rate,
    decay: float,
    decayed: Tree,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    momentum: float,
) -> GradientTransformation:
    """Muon for the matrices within layers, adapters too, and AdamW for everything else.

    Each layer's matrix, and each expert's, is updated by itself, by a step of the size of AdamW's.
    """

    def is_within(params: Tree) -> Tree:
        return {
            name: xf.tree.map(lambda p, name=name: is_stack(name) and p.ndim > 2, tree)
            for name, tree in params.items()
        }

    return xf.optim.muon(
        rate,
        beta=momentum,
        eps=eps,
        weight_decay=decay,
        weight_decay_mask=decayed,
        adam_b1=beta1,
        adam_b2=beta2,
        adam_weight_decay=decay,
        consistent_rms=0.2,
        muon_mask=is_within,
    )


OPTIMIZERS = {
    "adamw": Optimizer(adamw, ("beta1", "beta2", "eps")),
    "adafactor": Optimizer(adafactor, ()),
    "muon": Optimizer(muon, ("beta1", "beta2", "eps", "momentum")),
}


def rate(
    schedule: str,
    step: Int[Tensor, ""],
    *,
    peak: float,
    warmup: int,
    total: int,
    floor: float = 0.1,
    cooldown: float = 0.1,
) -> Float[Tensor, ""]:
    """The learning rate after `step` updates: it rises linearly to its peak, and may then fall.

    The last of `total` updates is made at the floor, a fraction of the peak. The rate of `wsd`
    stays at its peak, and falls in the last fraction of the steps, `cooldown`, as 1 - sqrt.

    Sources for `wsd`: Hu et al., MiniCPM, 2024 (arXiv:2404.06395), for the three phases; Hägele et
    al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, 2024
    (arXiv:2405.18392), for the length and shape of the last.
    """
    start = stable_until(total, cooldown) if schedule == "wsd" else warmup
    steps = max(total - 1 - start, 1)
    over = xf.optim.linear_schedule(0.0, 1.0, steps)
    fall = {
        "cosine": xf.optim.cosine_decay_schedule(1.0, steps, floor),
        "linear": xf.optim.linear_schedule(1.0, floor, steps),
        "wsd": lambda count: floor + (1 - floor) * (1 - over(count) ** 0.5),
        "constant": xf.optim.constant_schedule(1.0),
    }[schedule]
    return xf.optim.linear_schedule(0.0, peak, max(warmup, 1))(step + 1) * fall(step - start)


def stable_until(total: int, cooldown: float) -> int:
    """The step from which the rate of `wsd` falls."""
    return total - round(cooldown * total)
