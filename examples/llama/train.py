"""One training step and evaluation: what is compiled."""

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import xfunc as xf
from xfunc import NamedSharding, P

from . import model, optimizer
from .model import Batch
from .plan import Plan
from .sharding import Sharding

OPTIMIZERS = {
    "adamw": (optimizer.adamw_init, optimizer.adamw_update),
    "adafactor": (optimizer.adafactor_init, optimizer.adafactor_update),
}
SCHEDULES = {
    "cosine": optimizer.warmup_cosine,
    "linear": optimizer.warmup_linear,
    "constant": optimizer.warmup_constant,
}
_MEMORY = 0.98  # of the running mean of losses: about the last 50 steps
_SETTLED = 50  # steps before a loss may count as a spike


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how.

    Attributes:
        model: the sizes.
        steps: the length of the schedule.
        plan: how the model is computed.
        optimizer: what makes steps of gradients.
        schedule: how the rate falls after `warmup` steps; `constant`, it does not.
        warmup: steps in which the rate rises to `peak_lr`.
        peak_lr: the highest rate.
        floor: the rate at the last step, as a part of the highest.
        weight_decay: what a step takes off each weight, as a part of it, times the rate.
        clip: the most that the norm of all gradients together may be.
        skip_bad: whether a step changes nothing whose loss or gradient is not finite, or whose loss
            is more than `spike` standard deviations above the mean of the last 50 or so.
        spike: standard deviations above the mean of the last losses, from which one is bad.
    """

    model: model.Config
    steps: int
    plan: Plan = Plan()
    optimizer: str = "adamw"
    schedule: str = "cosine"
    warmup: int = 50
    peak_lr: float = 5e-3
    floor: float = 0.1
    weight_decay: float = 0.3
    clip: float = 1.0
    skip_bad: bool = True
    spike: float = 6.0

    def __post_init__(self) -> None:
        for name, table in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in table:
                known = ", ".join(table)
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: use one of {known}")
        for name in ("peak_lr", "clip", "spike"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: use more than 0")


class Guard(NamedTuple):
    """What a loss is compared with: the steps counted, running means of losses and squares."""

    seen: Int[Tensor, ""]
    mean: Float[Tensor, ""]
    square: Float[Tensor, ""]


class State(NamedTuple):
    """All that a step changes."""

    params: model.Params
    opt: Any
    guard: Guard


class Metrics(NamedTuple):
    """What a step has to tell; left on the device until somebody reads it."""

    loss: Float[Tensor, ""]
    grad_norm: Float[Tensor, ""]
    lr: Float[Tensor, ""]
    tokens: Float[Tensor, ""]  # that had a target
    skipped: Bool[Tensor, ""]


def init(recipe: Recipe, seed: int | Tensor = 0, dtype: torch.dtype = torch.float32) -> State:
    """The state before the first step, on the device.

    On a mesh, let each device make its part: ``xf.jit(lambda: init(recipe),
    out_shardings=shardings(recipe))()``.
    """
    return start(recipe, model.init(recipe.model, seed, dtype))


@functools.partial(xf.jit, static_argnames="recipe")
def start(recipe: Recipe, params: model.Params) -> State:
    """The state before the first step, of given parameters."""
    zero = torch.zeros((), dtype=torch.float32)
    guard = Guard(torch.zeros((), dtype=torch.int64), zero, zero)
    return State(params, OPTIMIZERS[recipe.optimizer][0](params), guard)


@functools.partial(xf.jit, donate_argnums=0, static_argnames="recipe")
def train_step(state: State, batch: Batch, *, recipe: Recipe) -> tuple[State, Metrics]:
    """Loss and gradient, then the optimizer. The new state takes the memory of the old one."""
    if recipe.warmup >= recipe.steps:
        raise ValueError(
            f"warmup is {recipe.warmup} steps of {recipe.steps}: make it shorter than the run"
        )
    loss, grads = gradient(state.params, batch, recipe)
    grads, norm = optimizer.clip_by_global_norm(grads, recipe.clip)
    lr = SCHEDULES[recipe.schedule](
        state.opt.step,
        peak=recipe.peak_lr,
        warmup=recipe.warmup,
        total=recipe.steps,
        floor=recipe.floor,
    )
    params, opt = OPTIMIZERS[recipe.optimizer][1](
        grads, state.opt, state.params, lr, weight_decay=recipe.weight_decay
    )
    guard, bad = watch(state.guard, loss.float(), norm, recipe.spike)
    new = State(params, opt, guard)
    if recipe.skip_bad:
        new = xf.tree.map(lambda new, old: torch.where(bad, old, new), new, state)
    else:
        bad = torch.zeros_like(bad)
    if recipe.plan.sharding is not None:  # The next step shall find it as this one did.
        new = xf.with_sharding_constraint(new, shardings(recipe))
    return new, Metrics(loss, norm, lr, model.target_count(batch), bad)


def gradient(
    params: model.Params, batch: Batch, recipe: Recipe
) -> tuple[Float[Tensor, ""], model.Params]:
    """The mean loss of a batch and its gradient, found for one part of the batch after another."""
    plan, count = recipe.plan, model.target_count(batch)
    parts = plan.microbatches
    of_part = xf.value_and_grad(model.loss)
    if parts == 1:
        return of_part(params, batch, recipe.model, plan, count)
    rows = batch.tokens.shape[0]
    if rows % parts:
        raise ValueError(f"a batch of {rows} rows has no {parts} equal parts: change microbatches")

    def add(total: Any, part: Batch) -> tuple[Any, None]:
        found = of_part(params, part, recipe.model, plan, count)
        return xf.tree.map(lambda t, x: t + x.to(t.dtype), total, found), None

    # Row after row to another part, so that each device has rows of all parts.
    split = xf.tree.map(lambda x: x.unflatten(0, (-1, parts)).movedim(1, 0), batch)
    zero = torch.zeros((), dtype=torch.float32)
    zeros = xf.tree.map(lambda p: torch.zeros_like(p, dtype=torch.float32), params)
    (loss, grads), _ = xf.scan(add, (zero, zeros), split)
    return loss, grads


def watch(
    guard: Guard, loss: Float[Tensor, ""], norm: Float[Tensor, ""], spike: float
) -> tuple[Guard, Bool[Tensor, ""]]:
    """The guard after a loss, and whether that or the gradient is bad."""
    unbias = 1 - _MEMORY**guard.seen
    mean = guard.mean / unbias
    deviation = (guard.square / unbias - mean.square()).clamp(min=0.0).sqrt()
    high = (guard.seen >= _SETTLED) & (loss > mean + spike * deviation)
    after = Guard(
        guard.seen + 1,
        _MEMORY * guard.mean + (1 - _MEMORY) * loss,
        _MEMORY * guard.square + (1 - _MEMORY) * loss.square(),
    )
    return after, ~torch.isfinite(loss) | ~torch.isfinite(norm) | high


eval_loss = xf.jit(model.loss, static_argnames=("config", "plan"))


# -- where the state lies -----------------------------------------------------------------------


@functools.cache
def shardings(recipe: Recipe) -> State:
    """The tree of shardings of `init`."""
    return xf.tree.map(lambda leaf: leaf.sharding, abstract_state(recipe))


def abstract_state(recipe: Recipe, dtype: torch.dtype = torch.bfloat16) -> State:
    """The shapes and shardings of a state that need not fit anywhere, to lower a step for."""
    sharding = recipe.plan.sharding
    if sharding is None:
        raise ValueError("the recipe's plan has no sharding: give it Plan(sharding=...)")
    shapes = model.shapes(recipe.model, dtype)
    weights = sharding.params(tied=recipe.model.tied)
    placed = xf.tree.map(lambda a, s: xf.ShapeDtypeStruct(a.shape, dtype, s), shapes, weights)
    made = xf.eval_shape(lambda params: start(recipe, params), shapes)
    opt = type(made.opt)(
        *(_beside(name, part, placed, sharding) for name, part in made.opt._asdict().items())
    )
    guard = xf.tree.map(
        lambda a: xf.ShapeDtypeStruct(a.shape, a.dtype, sharding.on_mesh(P())), made.guard
    )
    return State(placed, opt, guard)


def abstract_batch(recipe: Recipe, rows: int, seq: int) -> Batch:
    """The shapes and shardings of a batch of one document a row."""
    sharding = recipe.plan.sharding
    where = None if sharding is None else sharding.on_mesh(sharding.batch)
    tokens: Any = xf.ShapeDtypeStruct((rows, seq), torch.int32, where)
    return Batch(tokens, tokens)


def _on(a: Any, sharding: NamedSharding) -> xf.ShapeDtypeStruct:
    return xf.ShapeDtypeStruct(a.shape, a.dtype, sharding)


def _beside(name: str, part: Any, placed: Any, sharding: Sharding) -> Any:
    """A part of the optimizer's state, each leaf of which lies like its weight."""
    whole = sharding.on_mesh(P())
    if not isinstance(part, dict):
        return _on(part, whole)

    def place(a: xf.ShapeDtypeStruct, weight: xf.ShapeDtypeStruct) -> xf.ShapeDtypeStruct:
        spec = (*weight.sharding.spec, None, None)[: len(weight.shape)]
        if a.shape == weight.shape:
            where = weight.sharding
        elif not math.prod(a.shape):
            where = whole
        else:  # Means over the last dimension, or over the one before.
            left = spec[:-1] if name == "rows" else (*spec[:-2], spec[-1])
            where = sharding.on_mesh(P(*left))
        return _on(a, where)

    return xf.tree.map(place, part, placed)
