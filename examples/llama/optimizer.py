"""AdamW as pure functions of pytrees, with a schedule and gradient clipping to go with it."""

import math
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf

Tree: TypeAlias = Any  # a pytree of tensors


class AdamWState(NamedTuple):
    """Updates made so far, and running means of the gradients and of their squares."""

    step: Int[Tensor, ""]
    mean: Tree
    square: Tree


def adamw_init(params: Tree) -> AdamWState:
    """The state before the first update."""
    mean = xf.tree.map(torch.zeros_like, params)
    square = xf.tree.map(torch.zeros_like, params)
    return AdamWState(torch.zeros((), dtype=torch.int64), mean, square)


def adamw_update(
    grads: Tree,
    state: AdamWState,
    params: Tree,
    lr: float | Float[Tensor, ""],
    *,
    beta1: float = 0.9,
    beta2: float = 0.95,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> tuple[Tree, AdamWState]:
    """New parameters and state, by the formula of `torch.optim.AdamW`."""
    step = state.step + 1
    mean = xf.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mean, grads)
    square = xf.tree.map(lambda s, g: beta2 * s + (1 - beta2) * g * g, state.square, grads)
    # 1 - beta**step, by expm1: the plain difference loses digits in float32 when beta is near one.
    unbias1 = -torch.expm1(step * math.log(beta1))
    unbias2 = -torch.expm1(step * math.log(beta2))

    def update(p: Tensor, m: Tensor, s: Tensor) -> Tensor:
        return p - lr * (m / unbias1 / ((s / unbias2).sqrt() + eps) + weight_decay * p)

    return xf.tree.map(update, params, mean, square), AdamWState(step, mean, square)


def clip_by_global_norm(grads: Tree, limit: float) -> tuple[Tree, Float[Tensor, ""]]:
    """Gradients scaled to a joint norm of at most `limit`, and the norm they had."""
    squares = [g.float().square().sum() for g in xf.tree.leaves(grads)]
    norm = torch.stack(squares).sum().sqrt()
    scale = (limit / norm).clamp(max=1.0)
    return xf.tree.map(lambda g: g * scale.to(g.dtype), grads), norm


def warmup_cosine(
    step: Int[Tensor, ""], *, peak: float, warmup: int, total: int, floor: float = 0.1
) -> Float[Tensor, ""]:
    """The rate after `step` updates: up a line to `peak`, then down a cosine to `floor * peak`."""
    rise = ((step + 1) / warmup).clamp(max=1.0)
    fall = ((step - warmup) / (total - warmup)).clamp(0.0, 1.0)
    return peak * rise * (floor + (1 - floor) * (1 + torch.cos(math.pi * fall)) / 2)
