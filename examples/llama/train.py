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
from .model import Batch, Params
from .plan import Plan
from .precision import PRECISIONS, Precision
from .sharding import Sharding

OPTIMIZERS = {
    "adamw": (optimizer.adamw_init, optimizer.adamw_update),
    "adafactor": (optimizer.adafactor_init, optimizer.adafactor_update),
}
SCHEDULES = {
    "cosine": optimizer.warmup_cosine,
    "linear": optimizer.warmup_linear,
    "wsd": optimizer.warmup_stable_decay,
    "constant": optimizer.warmup_constant,
}
_OF_ADAMW = ("beta1", "beta2", "eps")
_MEMORY = 0.98  # of the running mean of losses: about the last 50 steps
_SETTLED = 50  # steps before a loss may count as a spike


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how.

    Attributes:
        model: the sizes.
        steps: the length of the schedule.
        plan: how the model is computed.
        precision: what weights are kept in, and what is computed in. `float32`: all; `mixed`:
            weights in float32, the model in bfloat16; `stochastic`, `compensated`: all in bfloat16
            but the optimizer, whose updates are rounded at random, or whose rounding errors are
            kept; `bfloat16`: the same without, where small updates are lost.
        optimizer: what makes steps of gradients.
        schedule: how the rate falls after `warmup` steps; `wsd`, it is stable, and falls in the
            last steps, see `cooldown`; `constant`, it does not.
        warmup: steps in which the rate rises to `peak_lr`.
        peak_lr: the highest rate.
        floor: the rate at the last step, as a part of the highest.
        cooldown: the last part of the steps, in which the rate of `wsd` falls.
        beta1: how much of its running mean of gradients `adamw` keeps from one step to the next.
        beta2: how much of that of their squares.
        eps: what `adamw` adds to the root of that before it divides.
        weight_decay: what a step takes off each weight, as a part of it, times the rate.
        decay_norms: whether it does from the scales of norms too.
        decay_embeddings: whether it does from embeddings too; with them, where these are tied,
            from the matrix that makes logits.
        clip: the most that the norm of all gradients together may be.
        skip_bad: whether a step changes nothing whose loss or gradient is not finite or a spike.
        spike: how many standard deviations above the mean of the last 50 or so the loss or the norm
            of the gradient has to be for a spike; null: however high, it is none.
    """

    model: model.Config
    steps: int
    plan: Plan = Plan()
    precision: str = "float32"
    optimizer: str = "adamw"
    schedule: str = "cosine"
    warmup: int = 50
    peak_lr: float = 5e-3
    floor: float = 0.1
    cooldown: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.3
    decay_norms: bool = False
    decay_embeddings: bool = True
    clip: float = 1.0
    skip_bad: bool = True
    spike: float | None = None

    def __post_init__(self) -> None:
        tables = ("precision", PRECISIONS), ("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)
        for name, table in tables:
            if getattr(self, name) not in table:
                known = ", ".join(table)
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: use one of {known}")
        for name, least in (("steps", 1), ("warmup", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: use {least} or more")
        for name in ("peak_lr", "clip", "spike", "eps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}: use a number above 0")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay is {self.weight_decay}: use 0 or more")
        for name, whole in (("floor", "rate"), ("cooldown", "steps")):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}: use a part of the {whole}, from 0 to 1"
                )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: use 0 or more, below 1")
        given = [x for x in _OF_ADAMW if getattr(self, x) != getattr(Recipe, x)]
        if given and self.optimizer != "adamw":
            raise ValueError(
                f"{', '.join(given)}: of adamw alone, and the optimizer is {self.optimizer}. Leave "
                "it out"
            )

    @property
    def numbers(self) -> Precision:
        """What `precision` names."""
        return PRECISIONS[self.precision]

    def check_warmup(self) -> None:
        """Raise an error if the schedule ends, or falls, before its warm-up ends."""
        if self.warmup >= self.steps:
            raise ValueError(
                f"warmup is {self.warmup} steps of {self.steps}: make it shorter than the run"
            )
        stable = optimizer.stable_until(self.steps, self.cooldown)
        if self.schedule == "wsd" and self.warmup > stable:
            raise ValueError(
                f"warmup is {self.warmup} steps of {self.steps}, and cooldown is {self.cooldown}, "
                f"so that the rate falls from step {stable} on: make one of them shorter"
            )

    def rate(self, step: Int[Tensor, ""]) -> Float[Tensor, ""]:
        """The learning rate after so many updates."""
        return SCHEDULES[self.schedule](
            step,
            peak=self.peak_lr,
            warmup=self.warmup,
            total=self.steps,
            floor=self.floor,
            cooldown=self.cooldown,
        )

    def update(
        self, grads: Any, opt: Any, params: Params, lr: Float[Tensor, ""]
    ) -> tuple[Params, Any]:
        """The parameters after an update of the optimizer, and its state."""
        options = {name: getattr(self, name) for name in _OF_ADAMW}
        return OPTIMIZERS[self.optimizer][1](
            grads,
            opt,
            params,
            lr,
            weight_decay=self.weight_decay,
            decayed=model.decayed(self.model, self.decay_norms, self.decay_embeddings),
            **(options if self.optimizer == "adamw" else {}),
        )


class Guard(NamedTuple):
    """What a step's loss and norm of the gradient are compared with.

    The steps counted, and running means of the two and of their squares.
    """

    seen: Int[Tensor, ""]
    mean: Float[Tensor, "2"]
    square: Float[Tensor, "2"]


class State(NamedTuple):
    """All that a step changes."""

    params: model.Params
    opt: Any
    guard: Guard
    compensation: model.Params | None = None  # see `Precision.kept`


class Metrics(NamedTuple):
    """What a step has to tell; left on the device until somebody reads it."""

    loss: Float[Tensor, ""]
    grad_norm: Float[Tensor, ""]
    lr: Float[Tensor, ""]
    tokens: Float[Tensor, ""]  # that had a target
    skipped: Bool[Tensor, ""]


def init(recipe: Recipe, seed: int | Tensor = 0) -> State:
    """The state before the first step, on the device: the same weights in every precision.

    On a mesh, let each device make its part: ``xf.jit(lambda: init(recipe),
    out_shardings=shardings(recipe))()``.
    """
    return start(recipe, model.init(recipe.model, seed))


@functools.partial(xf.jit, static_argnames="recipe")
def start(recipe: Recipe, params: model.Params) -> State:
    """The state before the first step, of given parameters."""
    zero = torch.zeros(2, dtype=torch.float32)
    guard = Guard(torch.zeros((), dtype=torch.int64), zero, zero)
    opt = OPTIMIZERS[recipe.optimizer][0](params)
    numbers = recipe.numbers
    params, compensation = numbers.kept(numbers.wide(params, None), opt.step)
    return State(params, opt, guard, compensation)


@functools.partial(xf.jit, donate_argnums=0, static_argnames="recipe")
def train_step(state: State, batch: Batch, *, recipe: Recipe) -> tuple[State, Metrics]:
    """Loss and gradient, then the optimizer. The new state takes the memory of the old one."""
    recipe.check_warmup()
    loss, grads = gradient(state.params, batch, recipe)
    grads, norm = optimizer.clip_by_global_norm(grads, recipe.clip)
    lr = recipe.rate(state.opt.step)
    wide = recipe.numbers.wide(state.params, state.compensation)
    wide, opt = recipe.update(grads, state.opt, wide, lr)
    params, compensation = recipe.numbers.kept(wide, opt.step)
    guard, bad = watch(state.guard, loss.float(), norm, recipe.spike)
    new = State(params, opt, guard, compensation)
    if recipe.skip_bad:
        new = xf.tree.map(lambda new, old: torch.where(bad, old, new), new, state)
        new = new._replace(guard=guard)  # Where spikes go on, they are none before long.
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
    params = recipe.numbers.computing(params)  # Once: what devices gather is in this dtype, too.
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
    guard: Guard, loss: Float[Tensor, ""], norm: Float[Tensor, ""], spike: float | None
) -> tuple[Guard, Bool[Tensor, ""]]:
    """The guard after a step, and whether its loss or gradient is bad."""
    now = torch.stack([loss, norm])
    finite = torch.isfinite(now).all()
    after = Guard(
        guard.seen + 1,
        _MEMORY * guard.mean + (1 - _MEMORY) * now,
        _MEMORY * guard.square + (1 - _MEMORY) * now.square(),
    )
    after = xf.tree.map(lambda new, old: torch.where(finite, new, old), after, guard)
    if spike is None:
        return after, ~finite
    unbias = 1 - _MEMORY**guard.seen
    mean = guard.mean / unbias
    deviation = (guard.square / unbias - mean.square()).clamp(min=0.0).sqrt()
    high = (guard.seen >= _SETTLED) & (now > mean + spike * deviation).any()
    return after, ~finite | high


@functools.partial(xf.jit, static_argnames="recipe")
def eval_loss(params: model.Params, batch: Batch, *, recipe: Recipe) -> Float[Tensor, ""]:
    """The mean loss of a batch, computed as in training."""
    params = recipe.numbers.computing(params)
    return model.loss(params, batch, recipe.model, recipe.plan)


# -- where the state lies -----------------------------------------------------------------------


@functools.cache
def shardings(recipe: Recipe) -> State:
    """The tree of shardings of `init`."""
    return xf.tree.map(lambda leaf: leaf.sharding, abstract_state(recipe))


def abstract_state(recipe: Recipe) -> State:
    """The shapes and shardings of a state that need not fit anywhere, to lower a step for."""
    sharding = recipe.plan.sharding
    if sharding is None:
        raise ValueError("the recipe's plan has no sharding: give it Plan(sharding=...)")
    shapes = model.shapes(recipe.model, recipe.numbers.weights)
    placed = xf.tree.map(_on, shapes, sharding.params(tied=recipe.model.tied))
    made = xf.eval_shape(lambda params: start(recipe, params), shapes)
    opt = type(made.opt)(
        *(_beside(name, part, placed, sharding) for name, part in made.opt._asdict().items())
    )
    guard = xf.tree.map(lambda a: _on(a, sharding.on_mesh(P())), made.guard)
    return State(placed, opt, guard, made.compensation and placed)


def abstract_batch(recipe: Recipe, rows: int, seq: int, *, packed: bool = False) -> Batch:
    """The shapes and shardings of a batch.

    Args:
        recipe: what is trained.
        rows: on all devices together.
        seq: tokens of a row.
        packed: whether rows hold several documents, as those of `Reader`; or one each.
    """
    sharding = recipe.plan.sharding
    where = None if sharding is None else sharding.on_mesh(sharding.batch)
    tokens: Any = xf.ShapeDtypeStruct((rows, seq), torch.int32, where)
    return Batch(tokens, tokens, tokens if packed else None)


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
