"""AdamW and Adafactor from the parts of `xf.optim`, and learning-rate schedules.

States are float32, whatever the dtype of the parameters (float64 stays float64): running means in
bfloat16 would lose most of what is added to them. Their fields are named as in checkpoints.
"""

from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf
from xfunc.optim import FactoredState, ScaleByAdamState

from ..model.attention import wide
from ..model.parameters import is_stack

Tree: TypeAlias = Any  # a pytree of tensors
Rate: TypeAlias = float | Float[Tensor, ""]


class AdamWState(NamedTuple):
    """Updates made so far, and running means of the gradients and of their squares."""

    step: Int[Tensor, ""]
    mean: Tree
    square: Tree


def adamw_init(params: Tree) -> AdamWState:
    """The state before the first update."""
    _, mean, square = xf.optim.scale_by_adam().init(xf.tree.map(wide, params))
    return AdamWState(torch.zeros((), dtype=torch.int64), mean, square)


def adamw_update(
    grads: Tree,
    state: AdamWState,
    params: Tree,
    lr: Rate,
    *,
    beta1: float = 0.9,
    beta2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
    decayed: Tree | None = None,
) -> tuple[Tree, AdamWState]:
    """New parameters and state, by the formula of `torch.optim.AdamW`.

    `decayed` says whether each parameter decays; None: all do.
    """
    adam = xf.optim.scale_by_adam(beta1, beta2, eps)
    updates, new = adam.update(grads, ScaleByAdamState(*state))
    updates = descent(updates, params, lr, weight_decay, decayed)
    return xf.optim.apply_updates(params, updates), AdamWState(*new)


class AdafactorState(NamedTuple):
    """Updates made so far, and running means of the squares of the gradients.

    For a parameter `[..., out, in]`, `rows` is the mean over `in`, `[..., out]`, and `columns` the
    mean over `out`, `[..., in]`. A vector has full `squares`. What a parameter does not have is an
    empty tensor, so that the three trees have the same structure.
    """

    step: Int[Tensor, ""]
    rows: Tree
    columns: Tree
    squares: Tree


def adafactor_init(params: Tree) -> AdafactorState:
    """The state before the first update."""
    _, *means = _by_factored_rms.init(params)

    def part(mean: Tree, is_of_matrices: bool) -> Tree:
        return xf.tree.map(
            lambda m, p: m if (p.ndim > 1) == is_of_matrices else m[:0], mean, params
        )

    parts = map(part, means, (True, True, False))
    return AdafactorState(torch.zeros((), dtype=torch.int64), *parts)


def adafactor_update(
    grads: Tree,
    state: AdafactorState,
    params: Tree,
    lr: Rate,
    *,
    weight_decay: float = 0.0,
    decayed: Tree | None = None,
) -> tuple[Tree, AdafactorState]:
    """New parameters and state, without momentum and without scaling the learning rate.

    The squares of a matrix are estimated from the means of its rows and columns, and an update
    whose root mean square exceeds one is scaled down to one. Both use the last two dimensions only:
    each layer of stacked weights counts by itself. (The stacked scales of norms, `[layers,
    hidden]`, count as one matrix.) `decayed` is as in `adamw_update`.

    Source: Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018.
    """

    def clipped(u: Tensor) -> Tensor:
        matrix = tuple(range(-min(u.ndim, 2), 0))
        return u / u.square().mean(matrix, keepdim=True).sqrt().clamp(min=1.0)

    updates, new = _by_factored_rms.update(grads, FactoredState(*state))
    updates = descent(xf.tree.map(clipped, updates), params, lr, weight_decay, decayed)
    return xf.optim.apply_updates(params, updates), AdafactorState(*new)


_by_factored_rms = xf.optim.scale_by_factored_rms(min_dim_size_to_factor=1)


def descent(
    updates: Tree, params: Tree, lr: Rate, weight_decay: float, decayed: Tree | None
) -> Tree:
    """What a step adds to the parameters: `-lr` times the updates and the decay."""
    end = xf.optim.chain(xf.optim.add_decayed_weights(weight_decay, decayed), xf.optim.scale(-lr))
    return end.update(updates, end.init(params), params)[0]


def norms(grads: Tree) -> dict[str, Tensor]:
    """The norm of the gradients of each layer, by its stack, and of each weight outside them."""

    def norm(tree: Tree, stacked: bool) -> Tensor:
        squares = [wide(g).square() for g in xf.tree.leaves(tree)]
        each = [s.reshape(*s.shape[:stacked], -1).sum(-1) for s in squares]
        return torch.stack(each).sum(0).sqrt().float()

    return {name: norm(tree, is_stack(name)) for name, tree in grads.items()}


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

    Args:
        schedule: how it falls to the floor after the warm-up: `cosine` or `linear`; `wsd`: it
            stays at its peak, and falls in the last steps, as 1 - sqrt; `constant`: it stays.
        step: updates made so far.
        peak: the highest rate.
        warmup: steps over which it rises.
        total: the number of updates; the last is made at the floor.
        floor: the rate then, as a fraction of the peak.
        cooldown: the fraction of the steps, at the end, over which that of `wsd` falls.

    Sources for `wsd`: Hu et al., MiniCPM: Unveiling the Potential of Small Language Models with
    Scalable Training Strategies, 2024 (arXiv:2404.06395), for the three phases; Hägele et al.,
    Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, 2024
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
