"""One training step and evaluation: the compiled functions."""

import dataclasses
import functools
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import xfunc as xf
from xfunc import NamedSharding, P

from .. import model
from ..model import Batch, Params, experts, quantised
from ..model.attention import wide
from ..model.parameters import with_buffers
from ..parallel.sharding import Sharding
from ..tune import lora, preference
from .train_config import Recipe


class State(NamedTuple):
    """Everything that a step changes."""

    params: Params  # those that are trained
    opt: Any
    step: Int[Tensor, ""]  # updates made so far


class Metrics(NamedTuple):
    """The metrics of a step, which stay on the device until they are read."""

    loss: Float[Tensor, ""]
    grad_norm: Float[Tensor, ""]
    lr: Float[Tensor, ""]
    tokens: Float[Tensor, ""]  # that had a target
    skipped: Bool[Tensor, ""]
    details: dict[str, Tensor]  # see `Details.metrics`


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
    details: Details


def init(recipe: Recipe, seed: int | Tensor = 0) -> State:
    """The state before the first step, on the device: the same weights in every precision.

    On a mesh, let each device create its shard: ``xf.jit(lambda: init(recipe),
    out_shardings=shardings(recipe))()``. If some weights are frozen, none are drawn: use
    `lora.trained` and `start`.
    """
    return start(recipe, model.init(recipe.model, seed))


@functools.partial(xf.jit, static_argnames="recipe")
def start(recipe: Recipe, params: Params) -> State:
    """The state before the first step, from the parameters that are trained.

    Running means are float32 at least, whatever the dtype of the weights: in bfloat16 they would
    lose most of what is added to them.
    """
    weights = recipe.numbers.wide(params)
    step = torch.zeros((), dtype=torch.int64)
    means = recipe.transformation(0.0).init(xf.tree.map(wide, weights))
    return State(recipe.numbers.kept(weights, step), means, step)


@functools.partial(xf.jit, donate_argnums=0, static_argnames="recipe")
def train_step(
    state: State, batch: Batch, base: Params | None = None, *, recipe: Recipe
) -> tuple[State, Metrics]:
    """Loss and gradient, then the optimizer. The new state reuses the memory of the old one.

    `base` has the weights that are not trained, as from `lora.frozen`; None: there are none.
    """
    recipe.check_warmup()
    mean, grads, details = gradient(state.params, batch, recipe, base)
    norm, clip = xf.optim.global_norm(grads), xf.optim.clip_by_global_norm(recipe.clip)
    grads, _ = clip.update(grads, clip.init(grads))
    lr, step = recipe.rate(state.step), state.step + 1
    weights = recipe.numbers.wide(state.params)
    updates, opt = recipe.transformation(lr).update(grads, state.opt, weights)
    updated = xf.optim.apply_updates(weights, updates)
    weights = with_buffers(updated, weights)
    if recipe.router_bias and details.taken is not None:
        weights = experts.balanced(weights, details.taken, recipe.model, recipe.router_bias)
    new = State(recipe.numbers.kept(weights, step), opt, step)
    bad = ~torch.isfinite(torch.stack([mean.float(), norm])).all()
    if recipe.skip_bad:
        new = xf.tree.map(lambda new, old: torch.where(bad, old, new), new, state)
    else:
        bad = torch.zeros_like(bad)
    if recipe.plan.sharding is not None:  # The next step must find it as this one did.
        new = xf.with_sharding_constraint(new, _shardings(_placed(recipe, new)))
    return new, Metrics(mean, norm, lr, model.target_count(batch), bad, details.metrics())


@functools.cache
def dynamic_step(recipe: Recipe, seq: int, buckets: tuple[int, ...], limit: int | None) -> Any:
    """`train_step` for rows of any length up to `seq`: a program for each bucket of lengths.

    A step uses at most `limit` bytes of a device.
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


def gradient(params: Params, batch: Batch, recipe: Recipe, base: Params | None = None) -> Gradient:
    """The mean loss of a batch, its gradient, and more, computed one microbatch at a time."""
    plan, count = recipe.plan, target_count(batch, recipe)
    params = recipe.numbers.computing(params)  # So that devices also gather in it.
    parts = plan.microbatches

    def of_part(part: Batch) -> tuple[Tensor, Params, Details]:
        both = xf.value_and_grad(loss, has_aux=True)
        (mean, details), grads = both(params, base, part, recipe, count)
        if plan.sharding is not None:  # XLA alone may shard some over fewer axes than the weights.
            grads = xf.with_sharding_constraint(grads, _shardings(_trained(recipe)))
        return mean, grads, details

    if parts == 1:
        return Gradient(*of_part(batch))
    rows = batch.tokens.shape[0]
    if rows % parts:
        raise ValueError(
            f"a batch of {rows} rows cannot be split into {parts} equal parts: change microbatches"
        )

    def add(total: Any, part: Batch) -> tuple[Any, Details]:
        mean, grads, details = of_part(part)
        return xf.tree.map(lambda t, x: t + x.to(t.dtype), total, (mean, grads)), details

    # Rows are dealt out in turn, so that each device has rows of all parts.
    split = xf.tree.map(lambda x: x.unflatten(0, (-1, parts)).movedim(1, 0), batch)
    zero = torch.zeros((), dtype=torch.float32)
    zeros = xf.tree.map(lambda p: torch.zeros_like(p, dtype=torch.float32), params)
    (total, grads), details = xf.scan(add, (zero, zeros), split)
    return Gradient(total, grads, xf.tree.map(lambda x: x.sum(0), details))


def loss(
    params: Params, base: Params | None, batch: Batch, recipe: Recipe, count: Float[Tensor, ""]
) -> tuple[Float[Tensor, ""], Details]:
    """The loss of a batch, and what metrics say about it.

    It is the sum over its targets, or its pairs, divided by `count`. `params` has the weights that
    are trained, in the form the model computes with, and `base` the others.
    """
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


@functools.partial(xf.jit, static_argnames="recipe")
def eval_loss(
    params: Params, batch: Batch, base: Params | None = None, *, recipe: Recipe
) -> Float[Tensor, ""]:
    """The mean loss of a batch, computed as in training, but without the losses of routers."""
    params = recipe.numbers.computing(params)
    recipe = dataclasses.replace(recipe, router_balance=0.0, router_size=0.0)
    return loss(params, base, batch, recipe, target_count(batch, recipe))[0]


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
    weights = sorted(xf.tree.leaves_with_path(placed), key=lambda pair: -len(pair[0]))

    def place(path: str, a: xf.ShapeDtypeStruct) -> xf.ShapeDtypeStruct:
        """A leaf of the optimizer's state, sharded like the weight whose path its own ends with."""
        weight = next((w for name, w in weights if path.endswith(name)), None)
        if weight is None:
            return _on(a, sharding.on_mesh(P()))
        spec = (*weight.sharding.spec, None, None)[: len(weight.shape)]
        if a.shape == weight.shape:
            return _on(a, weight.sharding)
        without = -1 if ".v_row" in path else -2  # the dimension that Adafactor's means are over
        left = [i for i in range(len(spec)) if i != len(spec) + without]
        if tuple(a.shape) != tuple(weight.shape[i] for i in left):
            return _on(a, sharding.on_mesh(P()))
        return _on(a, sharding.on_mesh(P(*(spec[i] for i in left))))

    step: Any = _on(made.step, sharding.on_mesh(P()))
    return State(placed, xf.tree.map_with_path(place, made.opt), step)


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
    """The shapes and shardings of a batch; rows of `Reader` are `packed` with several documents."""
    sharding = recipe.plan.sharding
    where = None if sharding is None else sharding.on_mesh(sharding.batch)
    tokens: Any = xf.ShapeDtypeStruct((rows, seq), torch.int32, where)
    return Batch(tokens, tokens, tokens if packed else None)


def _on(a: Any, sharding: NamedSharding) -> xf.ShapeDtypeStruct:
    return xf.ShapeDtypeStruct(a.shape, a.dtype, sharding)
