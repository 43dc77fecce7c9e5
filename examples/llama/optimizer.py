"""AdamW and Adafactor as pure functions of pytrees, with clipping and learning-rate schedules.

Both compute and keep their state in float32, whatever the dtype of the parameters (float64 stays
float64): running means in bfloat16 would lose most of what is added to them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf

Tree: TypeAlias = Any  # a pytree of tensors
Rate: TypeAlias = float | Float[Tensor, ""]


class AdamWState(NamedTuple):
    """Updates made so far, and running means of the gradients and of their squares."""

    step: Int[Tensor, ""]
    mean: Tree
    square: Tree


def adamw_init(params: Tree) -> AdamWState:
    """The state before the first update."""

    def zeros(p: Tensor) -> Tensor:
        return torch.zeros_like(p, dtype=wide(p).dtype)

    first, second = xf.tree.map(zeros, params), xf.tree.map(zeros, params)
    return AdamWState(torch.zeros((), dtype=torch.int64), first, second)


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
    step = state.step + 1
    mean = xf.tree.map(lambda m, g: beta1 * m + (1 - beta1) * wide(g), state.mean, grads)
    square = xf.tree.map(
        lambda s, g: beta2 * s + (1 - beta2) * wide(g).square(), state.square, grads
    )
    # 1 - beta**step, by expm1: the plain difference loses digits in float32 when beta is near one.
    unbias1, unbias2 = (-torch.expm1(step * math.log(b)) if b else 1.0 for b in (beta1, beta2))

    def update(p: Tensor, m: Tensor, s: Tensor, decay: float) -> Tensor:
        old = wide(p)
        change = m / unbias1 / ((s / unbias2).sqrt() + eps) + decay * old
        return (old - lr * change).to(p.dtype)

    decay = decay_of(params, weight_decay, decayed)
    return xf.tree.map(update, params, mean, square, decay), AdamWState(step, mean, square)


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

    def zeros(p: Tensor, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, dtype=wide(p).dtype, device=p.device)

    def rows(p: Tensor) -> Tensor:
        return zeros(p, p.shape[:-1] if p.ndim > 1 else (0,))

    def columns(p: Tensor) -> Tensor:
        return zeros(p, (*p.shape[:-2], p.shape[-1]) if p.ndim > 1 else (0,))

    def squares(p: Tensor) -> Tensor:
        return zeros(p, (0,) if p.ndim > 1 else p.shape)

    trees = (xf.tree.map(part, params) for part in (rows, columns, squares))
    return AdafactorState(torch.zeros((), dtype=torch.int64), *trees)


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
    step = state.step + 1
    weight = step**-0.8  # of the new squares, one at first

    def squares_of(g: Tensor) -> Tensor:
        return wide(g).square() + 1e-30

    def row(r: Tensor, g: Tensor) -> Tensor:
        return r + weight * (squares_of(g).mean(-1) - r) if g.ndim > 1 else r

    def column(c: Tensor, g: Tensor) -> Tensor:
        return c + weight * (squares_of(g).mean(-2) - c) if g.ndim > 1 else c

    def square(s: Tensor, g: Tensor) -> Tensor:
        return s if g.ndim > 1 else s + weight * (squares_of(g) - s)

    rows = xf.tree.map(row, state.rows, grads)
    columns = xf.tree.map(column, state.columns, grads)
    squares = xf.tree.map(square, state.squares, grads)

    def update(p: Tensor, g: Tensor, r: Tensor, c: Tensor, s: Tensor, decay: float) -> Tensor:
        if g.ndim > 1:
            relative = (r / r.mean(-1, keepdim=True)).rsqrt()
            change = wide(g) * relative[..., None] * c.rsqrt()[..., None, :]
        else:
            change = wide(g) * s.rsqrt()
        matrix = tuple(range(-min(g.ndim, 2), 0))
        rms = change.square().mean(matrix, keepdim=True).sqrt()
        change = change / rms.clamp(min=1.0) + decay * wide(p)
        return (wide(p) - lr * change).to(p.dtype)

    decay = decay_of(params, weight_decay, decayed)
    new = xf.tree.map(update, params, grads, rows, columns, squares, decay)
    return new, AdafactorState(step, rows, columns, squares)


def decay_of(params: Tree, weight_decay: float, decayed: Tree | None) -> Tree:
    """The decay of each parameter."""
    if decayed is None:
        return xf.tree.map(lambda _: weight_decay, params)
    return xf.tree.map(lambda _, yes: weight_decay if yes else 0.0, params, decayed)


def clip_by_global_norm(grads: Tree, limit: float) -> tuple[Tree, Float[Tensor, ""]]:
    """Gradients scaled to a joint norm of at most `limit`, and the norm they had, in float32."""
    norm = squared_norm(grads).sqrt()
    scale = (limit / norm).clamp(max=1.0)
    return xf.tree.map(lambda g: (wide(g) * scale).to(g.dtype), grads), norm


def squared_norm(grads: Tree) -> Float[Tensor, ""]:
    """The square of the joint norm, in float32."""
    return torch.stack([wide(g).square().sum().float() for g in xf.tree.leaves(grads)]).sum()


def norms(grads: Tree) -> dict[str, Tensor]:
    """The norm of the gradients of each layer, in `layers`, and of each weight outside them."""

    def norm(tree: Tree, stacked: bool) -> Tensor:
        squares = [wide(g).square() for g in xf.tree.leaves(tree)]
        each = [s.reshape(*s.shape[:stacked], -1).sum(-1) for s in squares]
        return torch.stack(each).sum(0).sqrt().float()

    return {name: norm(tree, name == "layers") for name, tree in grads.items()}


@dataclass(frozen=True)
class Schedule:
    """A learning rate that rises linearly to its peak, and may then fall to its floor.

    Attributes:
        left: maps the fraction of the decay that is over to the fraction of the fall that is left;
            None: the rate stays at its peak.
        at_end: whether it falls only in the last steps, and not right after the warm-up.
    """

    left: Callable[[Tensor], Tensor] | None
    at_end: bool = False

    def __call__(
        self,
        step: Int[Tensor, ""],
        *,
        peak: float,
        warmup: int,
        total: int,
        floor: float = 0.1,
        cooldown: float = 0.1,
    ) -> Float[Tensor, ""]:
        """The rate after `step` updates.

        Args:
            step: updates made so far.
            peak: the highest rate.
            warmup: steps over which it rises.
            total: the step at which it has fallen.
            floor: the rate from there on, as a fraction of the peak.
            cooldown: the fraction of the steps, at the end, over which it falls if `at_end`.
        """
        rate = peak * ((step + 1) / max(warmup, 1)).clamp(max=1.0)
        if self.left is None:
            return rate
        start = stable_until(total, cooldown) if self.at_end else warmup
        fallen = ((step - start) / max(total - start, 1)).clamp(0.0, 1.0)
        return rate * (floor + (1 - floor) * self.left(fallen))


def stable_until(total: int, cooldown: float) -> int:
    """The step from which the rate of `warmup_stable_decay` falls."""
    return total - round(cooldown * total)


warmup_cosine = Schedule(lambda fallen: (1 + torch.cos(math.pi * fallen)) / 2)
warmup_linear = Schedule(lambda fallen: 1 - fallen)
warmup_constant = Schedule(None)
warmup_stable_decay = Schedule(lambda fallen: 1 - fallen.sqrt(), at_end=True)
"""It stays at its peak, and falls at the end as 1 - sqrt.

Sources: Hu et al., MiniCPM: Unveiling the Potential of Small Language Models with Scalable Training
Strategies, 2024 (arXiv:2404.06395), for the three phases; Hägele et al., Scaling Laws and
Compute-Optimal Training Beyond Fixed Training Durations, 2024 (arXiv:2405.18392), for the length
and shape of the last.
"""


def wide(x: Tensor) -> Tensor:
    """`x` in the dtype that updates are computed in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
