"""One training step and evaluation: the compiled functions."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.optim import swa_utils

import xfunc as xf
from xfunc import NamedSharding, P

from .. import model
from ..model import Batch, Params, experts, float8, quantised
from ..model.parameters import with_buffers
from ..parallel.sharding import Sharding
from ..tune import lora, preference
from . import optimizer
from .train_config import OPTIMIZERS, Recipe

_MEMORY = 0.98  # of the running mean of losses: about the last 50 steps
_SETTLED = 50  # steps before a loss may count as a spike


class Guard(NamedTuple):
    """What a step's loss and gradient norm are compared with.

    The number of steps, and running means of the two and of their squares.
    """

    seen: Int[Tensor, ""]
    mean: Float[Tensor, "2"]
    square: Float[Tensor, "2"]


class State(NamedTuple):
    """Everything that a step changes."""

    params: Params  # those that are trained
    opt: Any
    guard: Guard
    compensation: Params | None = None  # see `Precision.kept`
    scaling: Params | None = None  # of products in 8 bits, see `float8`
    average: Params | None = None  # the running mean of the weights, see `Recipe.ema`


class Metrics(NamedTuple):
    """The metrics of a step, which stay on the device until they are read."""

    loss: Float[Tensor, ""]
    grad_norm: Float[Tensor, ""]
    lr: Float[Tensor, ""]
    tokens: Float[Tensor, ""]  # that had a target
    skipped: Bool[Tensor, ""]
    details: dict[str, Tensor]  # see `Details.metrics`
    norms: dict[str, Tensor] | None = None  # see `Recipe.layer_norms`
    noise: "Noise | None" = None  # see `Recipe.gradient_noise`


class Noise(NamedTuple):
    """Unbiased estimates of what determines how large a batch is of use.

    The quotient of their means over many steps is the "simple noise scale", in targets (or pairs):
    of batches that are much smaller, the gradient is mostly noise; of larger ones, hardly.

    Source: McCandlish et al., An Empirical Model of Large-Batch Training, 2018, appendix A.1.
    """

    signal: Float[Tensor, ""]  # the squared norm of the gradient of an infinite batch
    variance: Float[Tensor, ""]  # of the gradient of one target, summed over weights


class Details(NamedTuple):
    """More about the loss of a batch.

    Those of the parts of a batch add up: means are sums over a part's targets, or pairs, divided by
    the number in the batch.
    """

    language: Float[Tensor, ""] | None = None  # the loss without those of routers, if it has them
    taken: Float[Tensor, "layers experts"] | None = None  # tokens, if there are experts
    margin: Float[Tensor, ""] | None = None  # the mean of pairs, see `preference.Compared`
    accuracy: Float[Tensor, ""] | None = None  # the share of pairs with a margin above 0
    kl: Float[Tensor, ""] | None = None  # see `preference.Compared`

    def metrics(self) -> dict[str, Tensor]:
        """What is reported, by name."""
        found = {
            "language_loss": self.language,
            "expert_load": None if self.taken is None else experts.load(self.taken),
            "margin": self.margin,
            "accuracy": self.accuracy,
            "kl": self.kl,
        }
        return {name: value for name, value in found.items() if value is not None}


class Gradient(NamedTuple):
    """What `gradient` computes."""

    loss: Float[Tensor, ""]
    grads: Params
    scaling: Params | None  # of the next step's products
    details: Details
    noise: Noise | None = None


def init(recipe: Recipe, seed: int | Tensor = 0) -> State:
    """The state before the first step, on the device: the same weights in every precision.

    On a mesh, let each device create its shard: ``xf.jit(lambda: init(recipe),
    out_shardings=shardings(recipe))()``. If some weights are frozen, none are drawn: use
    `lora.trained` and `start`.
    """
    return start(recipe, model.init(recipe.model, seed))


@functools.partial(xf.jit, static_argnames="recipe")
def start(recipe: Recipe, params: Params) -> State:
    """The state before the first step, from the parameters that are trained."""
    zero = torch.zeros(2, dtype=torch.float32)
    guard = Guard(torch.zeros((), dtype=torch.int64), zero, zero)
    opt = OPTIMIZERS[recipe.optimizer][0](params)
    numbers = recipe.numbers
    wide = numbers.wide(params, None)
    scaling = _scaling(recipe, params)
    params, compensation = numbers.kept(wide, opt.step)
    return State(params, opt, guard, compensation, scaling, None if recipe.ema is None else wide)


def _scaling(recipe: Recipe, params: Params) -> Params | None:
    if recipe.numbers.products != "float8":
        return None
    every, names = lora.named(params), lora.full_matrices(recipe.model, recipe.tune)
    return lora.nested({name: float8.start(every[name]) for name in names})


@functools.partial(xf.jit, donate_argnums=0, static_argnames="recipe")
def train_step(
    state: State, batch: Batch, base: Params | None = None, *, recipe: Recipe
) -> tuple[State, Metrics]:
    """Loss and gradient, then the optimizer. The new state reuses the memory of the old one.

    Args:
        state: as from `start`.
        batch: rows of tokens.
        base: the weights that are not trained, as from `lora.frozen`; None: there are none.
        recipe: how it is trained.
    """
    recipe.check_warmup()
    points = recipe.points(state.params, state.opt)
    mean, grads, scaling, details, noise = gradient(points, batch, recipe, base, state.scaling)
    norms = optimizer.norms(grads) if recipe.layer_norms else None
    norm, clip = xf.optim.global_norm(grads), xf.optim.clip_by_global_norm(recipe.clip)
    grads, _ = clip.update(grads, clip.init(grads))
    lr = recipe.rate(state.opt.step)
    wide = recipe.numbers.wide(state.params, state.compensation)
    updated, opt = recipe.update(grads, state.opt, wide, lr)
    wide = with_buffers(updated, wide)
    if recipe.router_bias and details.taken is not None:
        wide = experts.balanced(wide, details.taken, recipe.model, recipe.router_bias)
    params, compensation = recipe.numbers.kept(wide, opt.step)
    guard, bad = watch(state.guard, mean.float(), norm, recipe.spike)
    average = averaged(state.average, wide, opt.step, recipe.ema)
    new = State(params, opt, guard, compensation, scaling, average)
    if recipe.skip_bad:
        new = xf.tree.map(lambda new, old: torch.where(bad, old, new), new, state)
        new = new._replace(guard=guard)  # Persistent spikes soon stop counting as such.
    else:
        bad = torch.zeros_like(bad)
    if recipe.plan.sharding is not None:  # The next step must find it as this one did.
        new = xf.with_sharding_constraint(new, _shardings(_placed(recipe, new)))
    count, more = model.target_count(batch), details.metrics()
    return new, Metrics(mean, norm, lr, count, bad, more, norms, noise)


def averaged(
    average: Params | None, wide: Params, step: Int[Tensor, ""], decay: float | None
) -> Params | None:
    """The running mean of the weights: at first the weights, as in `swa_utils.AveragedModel`."""
    if decay is None:
        return None
    mean: Any = swa_utils.get_ema_avg_fn(decay)
    return xf.tree.map(lambda a, w: torch.where(step == 1, w, mean(a, w, step)), average, wide)


@functools.cache
def dynamic_step(recipe: Recipe, seq: int, buckets: tuple[int, ...], limit: int | None) -> Any:
    """`train_step` for rows of any length up to `seq`: a program for each bucket of lengths.

    Args:
        recipe: how it is trained.
        seq: tokens of the longest row.
        buckets: the lengths to compile for.
        limit: bytes that a step may use on a device; None: no limit.
    """

    def step(state: State, batch: Batch, base: Params | None) -> tuple[State, Metrics]:
        if recipe.plan.sharding is not None:
            where = recipe.plan.sharding
            batch = xf.with_sharding_constraint(batch, where.on_mesh(where.batch))
        return train_step(state, batch, base, recipe=recipe)

    length = xf.Dim("S", max=seq)
    return xf.jit(
        step,
        donate_argnums=0,
        dynamic_shapes=(None, (None, length), None),
        buckets=[*buckets],
        memory_limit=limit,
    )


def gradient(
    params: Params,
    batch: Batch,
    recipe: Recipe,
    base: Params | None = None,
    scaling: Params | None = None,
) -> Gradient:
    """The mean loss of a batch, its gradient, and more, computed one microbatch at a time."""
    plan, count = recipe.plan, target_count(batch, recipe)
    params = recipe.numbers.computing(params)  # So that devices also gather in it.
    parts = plan.microbatches

    def of_part(part: Batch) -> tuple[Tensor, Params, Params | None, Details]:
        both = xf.value_and_grad(loss, (0, 5), has_aux=True)
        (mean, details), (grads, after) = both(params, base, part, recipe, count, scaling)
        if plan.sharding is not None:  # XLA alone may shard some over fewer axes than the weights.
            grads = xf.with_sharding_constraint(grads, _shardings(_trained(recipe)))
        return mean, grads, after, details

    if parts == 1:
        return Gradient(*of_part(batch))
    rows = batch.tokens.shape[0]
    if rows % parts:
        raise ValueError(
            f"a batch of {rows} rows cannot be split into {parts} equal parts: change microbatches"
        )

    def add(total: Any, part: Batch) -> tuple[Any, Details]:
        mean, grads, after, details = of_part(part)
        added = xf.tree.map(lambda t, x: t + x.to(t.dtype), total[:2], (mean, grads))
        squares = total[3]
        if squares is not None:
            share = target_count(part, recipe) / count
            squares = squares + xf.optim.global_norm(grads).square() / share
        return (*added, xf.tree.map(torch.maximum, total[2], after), squares), details

    # Rows are dealt out in turn, so that each device has rows of all parts.
    split = xf.tree.map(lambda x: x.unflatten(0, (-1, parts)).movedim(1, 0), batch)
    zero = torch.zeros((), dtype=torch.float32)
    zeros = xf.tree.map(lambda p: torch.zeros_like(p, dtype=torch.float32), params)
    none_yet = xf.tree.map(torch.zeros_like, scaling)
    start = zero, zeros, none_yet, zero if recipe.gradient_noise else None
    (total, grads, scaling, squares), details = xf.scan(add, start, split)
    details = xf.tree.map(lambda x: x.sum(0), details)
    noise = None if squares is None else _noise(squares, grads, count, parts)
    return Gradient(total, grads, scaling, details, noise)


def _noise(squares: Tensor, grads: Params, count: Tensor, parts: int) -> Noise:
    """`squares`: the mean of the parts' squared gradient norms, weighted by their targets."""
    whole = xf.optim.global_norm(grads).square()
    more = (squares - whole) / (parts - 1)
    return Noise(whole - more, count * more)


def loss(
    params: Params,
    base: Params | None,
    batch: Batch,
    recipe: Recipe,
    count: Float[Tensor, ""],
    scaling: Params | None = None,
) -> tuple[Float[Tensor, ""], Details]:
    """The loss of a batch: the sum over its targets, or its pairs, divided by `count`.

    With it, what metrics say about it.

    Args:
        params: the weights that are trained, in the form the model computes with.
        base: the weights that are not.
        batch: rows of tokens.
        recipe: what is trained.
        count: how many targets, or pairs, there are.
        scaling: of the products in 8 bits; its gradient is the scaling of the next step. None:
            there are no such products.
    """
    params = params if scaling is None else float8.scaled(params, scaling)
    joined = lora.join(params, base, recipe.tune)
    if not recipe.pairs:
        found, routed = model.losses_and_routed(joined, batch, recipe.model, recipe.plan)
        mean = model.mean_loss(found, routed, batch, count, recipe.routers)
        if routed is None:
            return mean, Details()
        return mean, Details(found.detach().sum() / count, routed.taken)
    sizes, plan = recipe.model, recipe.plan
    if recipe.preference == "orpo":
        found = preference.orpo(joined, batch, sizes, plan, recipe.orpo_weight)
    elif base is None:
        raise ValueError("pairs are compared with a base, but there is none: give one")
    elif recipe.preference == "kto":
        beta, weights = recipe.dpo_beta, recipe.kto_weights
        found = preference.kto(joined, base, batch, sizes, plan, beta, weights)
    else:
        found = preference.dpo(joined, base, batch, sizes, plan, recipe.dpo_beta)
    taken = None if found.routed is None else found.routed.taken
    kl = None if found.kl is None else found.kl / count
    return found.loss / count, Details(None, taken, found.margin / count, found.correct / count, kl)


def target_count(batch: Batch, recipe: Recipe) -> Float[Tensor, ""]:
    """How many targets, or pairs, a batch has; at least 1."""
    if not recipe.pairs:
        return model.target_count(batch)
    count = preference.answer_count if recipe.preference == "kto" else preference.pair_count
    return count(batch)


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
def eval_loss(
    params: Params, batch: Batch, base: Params | None = None, *, recipe: Recipe
) -> Float[Tensor, ""]:
    """The mean loss of a batch, computed as in training, but without products in 8 bits."""
    params = recipe.numbers.computing(params)
    recipe = dataclasses.replace(recipe, router_balance=0.0, router_size=0.0)
    return loss(params, base, batch, recipe, target_count(batch, recipe))[0]


# -- where the state is placed --------------------------------------------------------------------


def shardings(recipe: Recipe) -> State:
    """The tree of shardings of `init`."""
    return _shardings(abstract_state(recipe))


def abstract_state(recipe: Recipe) -> State:
    """The shapes and shardings of a state, which need not fit anywhere, for lowering a step."""
    shapes = xf.tree.map(lambda a: xf.ShapeDtypeStruct(a.shape, a.dtype), _trained(recipe))
    return _placed(recipe, xf.eval_shape(lambda params: start(recipe, params), shapes))


def _shardings(placed: Any) -> Any:
    return xf.tree.map(lambda leaf: leaf.sharding, placed)


def _placed(recipe: Recipe, made: State) -> State:
    """The shapes of a state, with their shardings."""
    placed, sharding = _trained(recipe), _sharding(recipe)
    opt = type(made.opt)(
        *(_beside(name, part, placed, sharding) for name, part in made.opt._asdict().items())
    )
    guard = xf.tree.map(lambda a: _on(a, sharding.on_mesh(P())), made.guard)
    average = made.average and xf.tree.map(lambda a, p: _on(a, p.sharding), made.average, placed)
    scaling = xf.tree.map(lambda a: _on(a, sharding.on_mesh(P())), made.scaling)
    return State(placed, opt, guard, made.compensation and placed, scaling, average)


def _trained(recipe: Recipe) -> Params:
    """The shapes and shardings of the weights that are trained."""
    every = abstract_params(recipe, recipe.numbers.weights)
    return lora.trained(every, recipe.model, recipe.tune, lora.abstract(recipe.tune))


def abstract_base(recipe: Recipe) -> Params | None:
    """The shapes and shardings of the weights that are not trained."""
    every = abstract_params(recipe, recipe.numbers.arithmetic)
    forms = lora.forms(recipe.model, recipe.tune)
    stored = xf.tree.map(quantised.abstract, every, forms)
    return lora.frozen(stored, recipe.model, recipe.tune, whole=recipe.compared)


def abstract_params(recipe: Recipe, dtype: torch.dtype) -> Params:
    """The shapes and shardings of all weights."""
    where = _sharding(recipe).params(model.weights(recipe.model))
    return xf.tree.map(_on, model.shapes(recipe.model, dtype), where)


def _sharding(recipe: Recipe) -> Sharding:
    if recipe.plan.sharding is None:
        raise ValueError("the recipe's plan has no sharding: give it Plan(sharding=...)")
    return recipe.plan.sharding


def abstract_batch(recipe: Recipe, rows: int, seq: int, *, packed: bool = False) -> Batch:
    """The shapes and shardings of a batch.

    Args:
        recipe: what is trained.
        rows: on all devices together.
        seq: tokens per row.
        packed: whether rows hold several documents, like those of `Reader`, or one each.
    """
    sharding = recipe.plan.sharding
    where = None if sharding is None else sharding.on_mesh(sharding.batch)
    tokens: Any = xf.ShapeDtypeStruct((rows, seq), torch.int32, where)
    return Batch(tokens, tokens, tokens if packed else None)


def _on(a: Any, sharding: NamedSharding) -> xf.ShapeDtypeStruct:
    return xf.ShapeDtypeStruct(a.shape, a.dtype, sharding)


def _beside(name: str, part: Any, placed: Any, sharding: Sharding) -> Any:
    """A part of the optimizer state, each leaf sharded like its weight."""
    whole = sharding.on_mesh(P())
    if not isinstance(part, dict):
        return _on(part, whole)

    def place(a: xf.ShapeDtypeStruct, weight: xf.ShapeDtypeStruct) -> xf.ShapeDtypeStruct:
        spec = (*weight.sharding.spec, None, None)[: len(weight.shape)]
        if a.shape == weight.shape:
            where = weight.sharding
        elif not math.prod(a.shape):
            where = whole
        else:  # Means over the last dimension, or the one before it.
            left = spec[:-1] if name == "rows" else (*spec[:-2], spec[-1])
            where = sharding.on_mesh(P(*left))
        return _on(a, where)

    return xf.tree.map(place, part, placed)
