"""Mixture of experts: a router picks a few feed-forward experts for each token and weights them.

No token is dropped. Where the mesh has an axis ``expert``, each device has some of the experts, and
devices send each other the tokens that their experts take, and get the outputs back.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf
from xfunc import P

from . import grouped, quantised
from .attention import wide
from .linear import Adapted, Weight, linear
from .parameters import Params
from .plan import POLICIES, Plan
from .quantised import Quantised, is_quantised
from .sizes import Config, Experts

Activation = Callable[[Tensor], Tensor]
Gated = Callable[[Tensor, Tensor], Tensor]
Matrices: TypeAlias = Weight | Adapted


class Routed(NamedTuple):
    """Statistics of a layer's router, summed over tokens, from which its losses are computed."""

    tokens: Float[Tensor, ""]  # their number
    taken: Float[Tensor, " experts"]  # how many each expert took
    probability: Float[Tensor, " experts"]  # the router's; of sigmoids, their shares in the sum
    size: Float[Tensor, ""]  # the squared logarithm of the softmax's denominator


def feed(
    x: Float[Tensor, "batch seq hidden"],
    layer: Params,
    settings: Experts,
    activation: Activation,
    plan: Plan,
    segments: Int[Tensor, "batch seq"] | None,
) -> tuple[Float[Tensor, "batch seq hidden"], Routed]:
    """The experts' output for each token of a layer, and the statistics of its router."""
    logits = linear(wide(x), xf.tree.map(wide, layer["router"]))
    logits = logits + wide(layer["b_router"]) if "b_router" in layer else logits
    if "choice_bias" in layer:
        chances, shares, chosen = _by_sigmoid(logits, layer["choice_bias"], settings)
    else:
        chances = logits.softmax(-1)
        shares, chosen = chances.topk(settings.active, -1)
        if settings.normalised:
            shares = shares / shares.sum(-1, keepdim=True)
    shares = shares if settings.scale == 1 else shares * settings.scale
    weights = layer["e_gate"], layer["e_up"], layer["e_down"]
    biases = tuple(layer[name] for name in ("be_gate", "be_up", "be_down") if name in layer)
    gated = functools.partial(_gated, activation=activation, settings=settings)
    made = _spread(x, chosen, shares, weights, biases, gated, plan)
    return made, _routed(logits, chances, chosen, segments)


def _by_sigmoid(
    logits: Float[Tensor, "batch seq experts"], bias: Float[Tensor, " experts"], settings: Experts
) -> tuple[Tensor, Tensor, Tensor]:
    """The share of each expert in the sum of sigmoids, and the weights and numbers of those that a
    token takes. The bias, which counts in the choice alone, has no gradient.

    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.1.2.
    """
    sigmoids = logits.sigmoid()
    scores = sigmoids.detach() + wide(bias)
    if settings.groups > 1:
        grouped = scores.unflatten(-1, (settings.groups, -1))
        best = grouped.topk(2, -1).values.sum(-1).topk(settings.active_groups, -1).indices
        number = torch.arange(settings.groups, device=logits.device)
        taken = (best[..., None] == number).any(-2)
        scores = grouped.masked_fill(~taken[..., None], -torch.inf).flatten(-2)
    chosen = scores.topk(settings.active, -1).indices
    shares, few = sigmoids.gather(-1, chosen), 1e-20  # all may be 0
    if settings.normalised:
        shares = shares / (shares.sum(-1, keepdim=True) + few)
    return sigmoids / (sigmoids.sum(-1, keepdim=True) + few), shares, chosen


def _gated(gate: Tensor, made: Tensor, activation: Activation, settings: Experts) -> Tensor:
    if (limit := settings.limit) is None:
        return activation(gate) * made
    gate = gate.clamp(max=limit)
    return gate * (settings.slope * gate).sigmoid() * (made.clamp(-limit, limit) + 1)


def _routed(logits: Tensor, chances: Tensor, chosen: Tensor, segments: Tensor | None) -> Routed:
    counts = torch.ones_like(logits[..., 0]) if segments is None else (segments > 0).to(logits)
    taken = (chosen[..., None] == torch.arange(logits.shape[-1], device=logits.device)).sum(2)
    return Routed(
        counts.sum(),
        (taken * counts[..., None]).sum((0, 1)),
        (chances * counts[..., None]).sum((0, 1)),
        (logits.logsumexp(-1).square() * counts).sum(),
    )


def losses(routed: Routed) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """How uneven the experts' loads are (about 1, if even, for each expert a token takes), and the
    mean size of the logits. `routed` is stacked over layers.

    Sources: Fedus et al., "Switch Transformers", 2021, as transformers computes it for several
    experts per token, over all layers at once; Zoph et al., "ST-MoE", 2022.
    """
    tokens, taken, probability, size = (x.sum(0) for x in routed)
    tokens = tokens.clamp(min=1.0)
    even = (taken / tokens * probability / tokens).sum() * taken.shape[0]
    return even, size / tokens


def load(taken: Float[Tensor, "layers experts"]) -> Float[Tensor, ""]:
    """The largest share of a layer's tokens that an expert took, over the even share."""
    return (taken.amax(1) / taken.mean(1).clamp(min=1 / taken.shape[1])).amax()


def balanced(
    params: Params, taken: Float[Tensor, "layers experts"], config: Config, step: float
) -> Params:
    """Parameters with a higher bias for experts that took fewer tokens than the mean, and a lower
    one for others. `taken` is stacked over layers.

    Source: Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", 2024.
    """
    found, start = dict(params), 0
    for stack in config.stacks:
        layers, count = params.get(stack.name, {}), len(stack.layers) if stack.experts else 0
        each, start = taken[start : start + count], start + count
        if "choice_bias" in layers:
            change = step * (each.mean(-1, keepdim=True) - each).sign()
            found[stack.name] = layers | {"choice_bias": layers["choice_bias"] + change}
    return found


def _spread(
    x: Tensor,
    chosen: Tensor,
    shares: Tensor,
    weights: tuple[Matrices, Matrices, Matrices],
    biases: tuple[Tensor, ...],
    gated: Gated,
    plan: Plan,
) -> Tensor:
    local = functools.partial(_local, gated=gated, plan=plan)
    sharding = plan.sharding
    if sharding is None:
        return local(x, chosen, shares, *weights, *biases)
    rows = sharding.fitting(x, sharding.tokens)
    down = _base(weights[2])
    # No block in codes is divided: there are as many scales as blocks.
    blocks: Any = down.scale.mT if is_quantised(down) else down
    out_of = sharding.fitting(blocks, P("expert", None, "tensor"))
    into = P(out_of[0], out_of[2], None)
    apart = bool(rows[0])
    fun = functools.partial(local, experts=into[0], features=into[1], apart=apart)
    # A policy around a region keeps or recomputes the region as a whole, so it is needed inside.
    fun = xf.checkpoint(fun, policy=POLICIES[plan.policy])
    matrices = [_specs(w, spec) for w, spec in zip(weights, (into, into, out_of), strict=True)]
    vectors = [P(into[0], into[1]), P(into[0], into[1]), P(into[0], None)][: len(biases)]
    specs = rows, rows, rows, *matrices, *vectors
    return xf.shard_map(fun, sharding.mesh, specs, rows)(x, chosen, shares, *weights, *biases)


def _base(weight: Matrices) -> Weight:
    return weight.base if isinstance(weight, Adapted) else weight


def _specs(weight: Matrices, spec: P) -> Any:
    if isinstance(weight, Adapted):
        of_experts, out, into = spec
        down: Any = None if weight.down is None else P(of_experts, None, into)
        up: Any = P(of_experts, out, None)
        return Adapted(_specs(weight.base, spec), down, up)
    return quantised.specs(spec) if is_quantised(weight) else spec


def _local(
    x: Tensor,
    chosen: Tensor,
    shares: Tensor,
    gate: Matrices,
    up: Matrices,
    down: Matrices,
    *biases: Tensor,
    gated: Gated,
    plan: Plan,
    experts: Any = None,
    features: Any = None,
    apart: bool = False,
) -> Tensor:
    """The experts' output for a device's tokens, whichever devices have the experts.

    `experts` and `features` are the axes that experts, and features within them, are sharded over,
    and `apart` says whether tokens are sharded over `experts`.
    """
    count = _base(gate).shape[0]

    def outputs(tokens: Tensor, chosen: Tensor) -> Tensor:
        """The experts here, for the tokens that chose them: ``[tokens, choices, hidden]``."""
        block, kernel = plan.expert_block(chosen.numel(), count)
        where = grouped.layout(chosen, count, block, kernel=kernel)
        rows = grouped.to_places(tokens, where.places)
        low = _lowered(rows, gate, where)  # Both adapters have the same `down`.
        into = _product(rows, gate, where, low), _product(rows, up, where, low)
        if biases:
            into = _biased(into[0], biases[0], where), _biased(into[1], biases[1], where)
        made = gated(*into)
        made = _product(made, down, where, _lowered(made, down, where))
        if biases:  # of which one device adds the last one, where several add up features
            own = 1 if features is None else (xf.axis_index(features) == 0).to(made.dtype)
            made = _biased(made, biases[2] * own, where)
        return grouped.from_places(made, where.places)

    tokens, chosen, shares = (a.flatten(0, 1) for a in (x, chosen, shares))
    if experts is not None and apart:
        made = _sent(tokens, chosen, shares, outputs, count, experts)
    else:
        first = xf.axis_index(experts) * count if experts is not None else 0
        made = _weighted(outputs(tokens, chosen - first), shares)
        if experts is not None:
            made = xf.psum(made, experts)
    made = made.to(x.dtype).unflatten(0, x.shape[:2])
    return made if features is None else xf.psum(made, features)


def _biased(made: Tensor, bias: Tensor, where: grouped.Layout) -> Tensor:
    of_blocks = bias[where.matrix]
    return (made.unflatten(0, (of_blocks.shape[0], -1)) + of_blocks[:, None]).flatten(0, 1)


def _weighted(made: Tensor, shares: Tensor) -> Tensor:
    return (wide(made) * shares[..., None]).sum(1)


ROOM = 1.5  # times the rows that devices would exchange if the experts' loads were even


def _sent(
    tokens: Tensor,
    chosen: Tensor,
    shares: Tensor,
    outputs: Callable[[Tensor, Tensor], Tensor],
    count: int,
    axis: str,
) -> Tensor:
    """Send rows to the devices of their experts, and get the outputs back.

    Devices exchange buffers that have room for a few more rows than if loads were even. What is
    beyond is sent in further rounds, so that nothing is dropped; without such rows there are none.
    """
    devices = xf.axis_size(axis)
    size = min(chosen.numel(), math.ceil(ROOM * chosen.numel() / devices))
    rows = grouped.by_kind(chosen // count, devices)
    within = (chosen % count).flatten()

    def exchange(a: Tensor) -> Tensor:
        return xf.all_to_all(a, axis, split_axis=0, concat_axis=0, tiled=True)

    def sent(start: int | Tensor) -> Tensor:
        where = grouped.queues(rows, size, start)
        wanted = torch.where(where.filled, within[where.source], -1)
        made = outputs(exchange(grouped.to_places(tokens, where)), exchange(wanted)[:, None])
        return _weighted(grouped.from_places(exchange(made[:, 0]), where), shares)

    first = sent(0)
    longest = xf.pmax(rows.counts.max().int(), axis)  # TPUs have no maximum of int64
    starts = torch.arange(size, chosen.numel(), size, device=chosen.device)

    @functools.partial(xf.checkpoint, policy=POLICIES["full"])
    def further(total: Tensor, start: Tensor) -> tuple[Tensor, None]:
        made = xf.cond(start < longest, sent, lambda _: torch.zeros_like(first), start)
        return total + made, None

    def rest(total: Tensor) -> Tensor:
        return xf.scan(further, total, starts)[0]

    return xf.cond(longest > size, rest, lambda total: total, first)


def _lowered(x: Tensor, weights: Matrices, where: grouped.Layout) -> Tensor | None:
    """The product with the first matrices of the adapters, if there are any."""
    if not isinstance(weights, Adapted):
        return None
    assert weights.down is not None
    return grouped.product(x, weights.down, where)


def _product(
    x: Tensor, weights: Matrices, where: grouped.Layout, low: Tensor | None = None
) -> Tensor:
    """The grouped product; `low` is that of `_lowered`.

    Weights in codes become plain all at once: block by block, an expert would several times.
    """
    if isinstance(weights, Adapted):
        assert low is not None
        return _product(x, weights.base, where) + grouped.product(low, weights.up, where)
    if not is_quantised(weights):
        return grouped.product(x, weights, where)

    def made(x: Tensor, weights: Quantised, where: grouped.Layout) -> Tensor:
        # One after another: libtpu would copy the codes of all layers into another layout.
        plain = xf.map(lambda one: one.plain().to(x.dtype), weights)
        return grouped.product(x, plain, where)

    return xf.checkpoint(made)(x, weights, where)
