"""One training step, evaluation and generation: everything that is compiled."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf

from . import model
from .optimizer import AdamWState, adamw_init, adamw_update, clip_by_global_norm, warmup_cosine


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how."""

    model: model.Config
    steps: int
    warmup: int = 50
    peak_lr: float = 5e-3
    weight_decay: float = 0.3
    clip: float = 1.0


class State(NamedTuple):
    """All that a step changes, and all that a checkpoint would hold."""

    params: model.Params
    opt: AdamWState


class Metrics(NamedTuple):
    """What a step has to tell; left on the device until somebody reads it."""

    loss: Float[Tensor, ""]
    grad_norm: Float[Tensor, ""]
    lr: Float[Tensor, ""]


def init(recipe: Recipe, seed: int = 0) -> State:
    """The state before the first step."""
    params = model.init(recipe.model, seed)
    return State(params, adamw_init(params))


@functools.partial(xf.jit, donate_argnums=0, static_argnames="recipe")
def train_step(
    state: State, batch: Int[Tensor, "batch seq+1"], *, recipe: Recipe
) -> tuple[State, Metrics]:
    """Loss and gradient, then AdamW. The old state is donated: the new one takes its memory."""
    loss, grads = xf.value_and_grad(model.loss)(state.params, batch, recipe.model)
    grads, norm = clip_by_global_norm(grads, recipe.clip)
    lr = warmup_cosine(
        state.opt.step, peak=recipe.peak_lr, warmup=recipe.warmup, total=recipe.steps
    )
    params, opt = adamw_update(grads, state.opt, state.params, lr, weight_decay=recipe.weight_decay)
    return State(params, opt), Metrics(loss, norm, lr)


eval_loss = xf.jit(model.loss, static_argnames="config")


@functools.partial(xf.jit, static_argnames="config")
def generate(
    params: model.Params,
    window: Int[Tensor, " seq"],
    start: Int[Tensor, ""],
    noise: Float[Tensor, "new vocab"],
    *,
    config: model.Config,
) -> Int[Tensor, " seq"]:
    """The window with `new` tokens written from `start` on, each the likeliest once noise is added.

    No noise is greedy decoding; Gumbel noise times a temperature samples at that temperature.
    Every token runs the whole window, which is right because no token sees those after it.
    """
    place = torch.arange(window.shape[0], device=window.device)

    def step(carry: tuple[Tensor, Tensor], noise: Tensor) -> tuple[tuple[Tensor, Tensor], None]:
        window, end = carry
        logits = model.forward(params, window[None], config)[0].index_select(0, end[None] - 1)
        token = (logits[0].float() + noise).argmax(-1)
        return (torch.where(place == end, token, window), end + 1), None

    (window, _), _ = xf.scan(step, (window, start), noise)
    return window
