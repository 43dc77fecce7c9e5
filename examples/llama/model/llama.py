"""Llama and its relatives as pure functions of a dictionary of tensors.

The weights of all layers are stacked, `[layers, out, in]`, and `xf.scan` runs one layer over them.
The conventions are Hugging Face's, so that published weights fit. `sizes.Config` says what a model
has beyond Llama.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf
from xfunc import P

from ..parallel.sharding import Sharding
from . import attention, experts, kernels
from .experts import Routed
from .linear import linear
from .parameters import Params
from .plan import POLICIES, Plan
from .ring import ring
from .rope import Kind, Local, Rope, Ropes, rotate, temperature
from .sizes import Config, Latent

IGNORE = -100  # a target that has no loss


class Batch(NamedTuple):
    """Rows of text: one document each, or several that do not see each other."""

    tokens: Int[Tensor, "batch seq"]
    targets: Int[Tensor, "batch seq"]  # the token that follows each, or IGNORE
    segments: Int[Tensor, "batch seq"] | None = None  # the document of each token; 0: padding


def batch_of(windows: Int[Tensor, "batch seq+1"]) -> Batch:
    """A batch of one document per row, in which each token is predicted from those before it."""
    return Batch(windows[:, :-1], windows[:, 1:])


def rms_norm(
    x: Float[Tensor, "*batch hidden"], weight: Float[Tensor, " hidden"], eps: float
) -> Float[Tensor, "*batch hidden"]:
    """Divide by the root mean square, computed in float32, and multiply by the weight."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def norm(
    x: Float[Tensor, "*batch size"], weight: Float[Tensor, " size"], config: Config
) -> Float[Tensor, "*batch size"]:
    """The norm of the model's family."""
    traits = config.traits
    if not (traits.offset_norms or traits.wide_norms):
        return rms_norm(x, weight, config.norm_eps)
    wide = 1 + weight.float() if traits.offset_norms else weight.float()
    return rms_norm(x.float(), wide, config.norm_eps).to(x.dtype)


def _map(x: Tensor, layer: Params, name: str) -> Tensor:
    """`x` times a matrix of a layer, such as ``wq``, plus its bias, ``bq``, if it has one."""
    made, bias = linear(x, layer[name]), layer.get(f"b{name[1:]}")
    return made if bias is None else made + bias


def heads(
    x: Float[Tensor, "batch seq hidden"], layer: Params, rope: Rope, config: Config, plan: Plan
) -> tuple[attention.Heads, attention.Heads, attention.Heads]:
    """Queries, keys and values; the latter two have `config.kv_heads` heads."""
    if config.latent is not None:
        found = latents(x, layer, rope, config, plan)
        return _expanded(found, layer, config, config.latent, plan)

    def made(name: str, n: int) -> attention.Heads:
        mapped, weight = _map(x, layer, f"w{name}"), layer.get(f"{name}_norm")
        if weight is not None and config.traits.qk_norm == "all":
            mapped = norm(mapped, weight, config)
        split = mapped.unflatten(-1, (n, config.head_dim))
        if weight is not None and config.traits.qk_norm == "head":
            split = norm(split, weight, config)
        if name != "v" and config.traits.interleaved:  # Products keep their values.
            split = _parted(split)
        return _in_heads(split, plan)

    q, k = made("q", config.heads), made("k", config.kv_heads)
    return rotate(q, rope), rotate(k, rope), made("v", config.kv_heads)


def _parted(x: Tensor) -> Tensor:
    """Pairs of neighbouring features as the two halves that `rotate` turns."""
    return x.unflatten(-1, (-1, 2)).mT.flatten(-2)


_LATENT_EPS = 1e-6  # of norms of latent features, whatever `norm_eps` is


class Latents(NamedTuple):
    """Queries, and what keys and values of latent attention are computed from."""

    q_turned: Float[Tensor, "batch heads seq rotary"]
    q_plain: Float[Tensor, "batch heads seq plain"]
    k_turned: Float[Tensor, "batch 1 seq rotary"]
    low: Float[Tensor, "batch 1 seq keys"]


def latents(
    x: Float[Tensor, "batch seq hidden"], layer: Params, rope: Rope, config: Config, plan: Plan
) -> Latents:
    """The features of latent attention, with rotary embeddings."""
    sizes = config.latent
    assert sizes is not None
    if sizes.queries is None:
        q = linear(x, layer["wq"])
    else:
        low = rms_norm(_map(x, layer, "wq_a"), layer["q_a_norm"], _LATENT_EPS)
        q = linear(low, layer["wq_b"])
    q_plain, q_turned = q.unflatten(-1, (config.heads, -1)).split((sizes.plain, sizes.rotary), -1)
    low, k_turned = _map(x, layer, "wkv_a").split((sizes.keys, sizes.rotary), -1)
    low = rms_norm(low, layer["kv_a_norm"], _LATENT_EPS)
    q_turned, k_turned = (
        rotate(_in_heads(_parted(a) if config.traits.interleaved else a, plan), rope)
        for a in (q_turned, k_turned[:, :, None])
    )
    return Latents(q_turned, _in_heads(q_plain, plan), k_turned, low[:, None])


def _expanded(
    latents: Latents, layer: Params, config: Config, sizes: Latent, plan: Plan
) -> tuple[attention.Heads, attention.Heads, attention.Heads]:
    """Queries, keys and values of latent attention; features with rotary embeddings come first."""
    q_turned, q_plain, k_turned, low = latents
    both = linear(low[:, 0], layer["wkv_b"]).unflatten(-1, (config.heads, -1))
    k_plain, v = _in_heads(both, plan).split((sizes.plain, sizes.values), -1)
    k_turned = k_turned.expand(-1, config.heads, -1, -1)
    return torch.cat([q_turned, q_plain], -1), torch.cat([k_turned, k_plain], -1), v


def _in_heads(x: Float[Tensor, "batch seq heads size"], plan: Plan) -> attention.Heads:
    return _lie(x.transpose(1, 2), lambda s: s.heads, plan)


def attend(
    x: Float[Tensor, "batch seq hidden"],
    layer: Params,
    rope: Rope,
    segments: Int[Tensor, "batch seq"] | None,
    config: Config,
    plan: Plan,
    local: Local = False,
) -> Float[Tensor, "batch seq hidden"]:
    """Causal self-attention, with several query heads for each head of keys and values."""
    q, k, v = heads(x, layer, rope, config, plan)
    if missing := config.head_dim - config.value_dim:  # Kernels have one size for all three.
        v = F.pad(v, (0, missing))
    see: dict[str, Any] = {"reach": reach(config, local), "scores": scores(config)}
    sinks = layer.get("sinks")
    if sinks is not None and (plan.context > 1 or plan.attention not in ("dense", "blockwise")):
        raise ValueError(
            f"plan.attention is {plan.attention!r}: of models with attention sinks use 'blockwise' "
            "or 'dense', and leave mesh.context at 1"
        )
    if plan.attention == "dense":
        mixed = attention.dense(q, k, v, segments, sinks=sinks, **see)
    elif plan.sharding is not None and plan.context > 1:
        mixed = ring(q, k, v, segments, sharding=plan.sharding, block=plan.block, **see)
    elif plan.attention == "blockwise":
        how: dict[str, Any] = {"block": plan.block, "sharding": plan.sharding}
        mixed = attention.blockwise(q, k, v, segments, sinks=sinks, **see, **how)
    else:
        mixed = _by_kernel(q, k, v, segments, config, plan, local)
    return joined(_lie(mixed[..., : config.value_dim], lambda s: s.heads, plan), layer)


def _by_kernel(
    q: attention.Heads,
    k: attention.Heads,
    v: attention.Heads,
    segments: Int[Tensor, "batch seq"] | None,
    config: Config,
    plan: Plan,
    local: Local,
) -> attention.Heads:
    """The window is compiled into the kernel: there are two kernels if layers differ."""

    def run(window: int | None) -> Callable[..., attention.Heads]:
        settings: Any = {"sharding": plan.sharding, "window": window, "scores": scores(config)}
        if plan.attention == "cudnn":
            return functools.partial(kernels.cudnn_attention, **settings)
        return functools.partial(kernels.splash_attention, block=plan.block, **settings)

    if isinstance(local, bool):
        return run(config.window if local else None)(q, k, v, segments)
    return xf.cond(local, run(config.window), run(None), q, k, v, segments)


def joined(mixed: attention.Heads, layer: Params) -> Float[Tensor, "batch seq hidden"]:
    """The output of attention, from those of its heads."""
    return _map(mixed.transpose(1, 2).flatten(2), layer, "wo")


def reach(config: Config, local: Local) -> attention.Reach:
    """How many tokens a token sees in a layer; None: all."""
    if isinstance(local, bool) or config.window is None:
        return config.window if local is True else None
    return torch.where(local, config.window, torch.iinfo(torch.int32).max)


def scores(config: Config) -> attention.Scores:
    """How scores are computed from the products of queries and keys."""
    scale = None if config.query_scale is None else config.query_scale**-0.5
    if config.latent is not None and (scaling := config.rope_scaling) is not None:
        scale = temperature(scaling.factor, scaling.mscale_all_dim or 0.0) ** 2
        scale *= config.head_dim**-0.5
    return attention.Scores(scale or config.score_scale, config.score_cap)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def mlp(
    x: Float[Tensor, "*batch hidden"],
    layer: Params,
    plan: Plan | None = None,
    activation: str = "silu",
) -> Float[Tensor, "*batch hidden"]:
    """The feed-forward map: gated, such as SwiGLU, if there are weights of a gate."""
    # The gate's product comes first: libtpu's schedule of the other order takes more memory.
    names = ("w_gate", "w_up") if "w_gate" in layer else ("w_up",)
    products = (_map(x, layer, name) for name in names)
    # Where `tensor` shards features, XLA keeps fewer arrays of their size for the backward pass if
    # it stores the gradients of both products at once; elsewhere that takes more memory.
    sharding = None if plan is None else plan.sharding
    hold = sharding is not None and sharding.mesh.shape["tensor"] > 1
    if hold:
        products = iter(xf.optimization_barrier([*products]))
    features = _ACTIVATIONS[activation](next(products))
    for product in products:
        features = features * product
    if hold:
        features = xf.optimization_barrier(features)
    if plan is not None:
        features = _lie(features, lambda s: s.features, plan)
    return _map(features, layer, "w_down")


def add_to(
    x: Float[Tensor, "batch seq hidden"],
    layer: Params,
    attend: Callable[[Tensor], Tensor],
    config: Config,
    plan: Plan,
    segments: Int[Tensor, "batch seq"] | None = None,
) -> tuple[Float[Tensor, "batch seq hidden"], Routed | None]:
    """One layer: `x`, to which attention and the feed-forward part are added.

    `attend` computes attention, from the features after the first norm. The second result has the
    router's statistics, if there is one.
    """

    def normed(x: Tensor, name: str) -> Tensor:
        return norm(x, layer[name], config) if name in layer else x

    def added(x: Tensor, made: Tensor) -> Tensor:
        return x + made if config.residual_scale is None else x + made * config.residual_scale

    x = added(x, normed(attend(normed(x, "attn_norm")), "attn_out_norm"))
    made, routed = _feed(normed(x, "mlp_norm"), layer, config, plan, segments)
    return added(x, normed(made, "mlp_out_norm")), routed


def _feed(
    x: Tensor, layer: Params, config: Config, plan: Plan, segments: Tensor | None
) -> tuple[Tensor, Routed | None]:
    """The feed-forward part."""
    if config.experts is None or "router" not in layer:
        return mlp(x, layer, plan, config.activation), None
    activation = _ACTIVATIONS[config.activation]
    made, routed = experts.feed(x, layer, config.experts, activation, plan, segments)
    if config.experts.shared:
        gate = layer.get("shared_gate")
        share = None if gate is None else linear(x, gate).sigmoid()
        shared = mlp(x, layer, plan, config.activation)
        made = made + (shared if share is None else share * shared)
    return made, routed


def embedded(
    params: Params, tokens: Int[Tensor, "batch seq"], config: Config
) -> Float[Tensor, "batch seq hidden"]:
    """The features of each token before the first layer."""
    x = F.embedding(tokens, params["embed"])
    if config.embed_scale is not None:
        x = x * config.embed_scale
    if not config.traits.scaled_embeddings:
        return x
    return x * torch.tensor(config.hidden**0.5, dtype=torch.float32).to(x.dtype)


def scan_layers(
    layer: Callable[[Any, Any, Kind], tuple[Any, Any]],
    x: Any,
    xs: Mapping[str, Any],
    config: Config,
    **settings: Any,
) -> tuple[Any, dict[str, Any]]:
    """`xf.scan` over layers; `layer` is told the kind of each, statically where all agree.

    What it is given, and what it returns, is by the names of `config.stacks`, and stacked.
    """
    found = {}
    for stack in config.stacks:
        flags = {
            "local": tuple(config.local_layers[i] for i in stack.layers),
            "still": tuple(i in config.nope_layers for i in stack.layers),
        }
        same: Any = {name: each[0] for name, each in flags.items() if len(set(each)) == 1}
        differ = {name: torch.tensor(each) for name, each in flags.items() if name not in same}

        def run(x: Any, each: Any, same: Any = same) -> tuple[Any, Any]:
            return layer(x, each[0], Kind(**same, **each[1]))

        x, found[stack.name] = xf.scan(run, x, (xs[stack.name], differ), **settings)
    return x, found


def _lie(x: Tensor, where: Callable[[Sharding], P], plan: Plan) -> Tensor:
    """`x`, sharded on the mesh as arrays of its kind are."""
    s = plan.sharding
    return x if s is None else s.constrain(x, where(s))


def run_layers(
    params: Params,
    tokens: Int[Tensor, "batch seq"],
    config: Config,
    plan: Plan,
    segments: Int[Tensor, "batch seq"] | None,
) -> tuple[Float[Tensor, "batch seq hidden"], Routed | None]:
    """The last layer's output at each position, before the final norm and in the order in which
    devices have it, and the statistics of all layers' routers.
    """
    tokens = plan.as_divided(tokens)
    segments = None if segments is None else plan.as_divided(segments)
    places = plan.as_divided(torch.arange(tokens.shape[1], device=tokens.device)[None])[0]
    ropes = Ropes.of(places, config)

    def block(x: Tensor, layer: Params, kind: Kind) -> tuple[Tensor, Routed | None]:
        def mix(normed: Tensor) -> Tensor:
            rope = ropes.of_layer(*kind)
            return attend(normed, layer, rope, segments, config, plan, kind.local)

        x = xf.checkpoint_name(x, "layer_input")
        x, routed = add_to(x, layer, mix, config, plan, segments)
        return _lie(x, lambda s: s.activations, plan), routed

    x = _lie(embedded(params, tokens, config), lambda s: s.lookups, plan)
    if plan.context > 1:
        x = _lie(x, lambda s: s.of_context, plan)
    x = _lie(x, lambda s: s.activations, plan)
    policy = POLICIES[plan.policy]
    x, found = scan_layers(block, x, params, config, checkpoint_policy=policy)
    routed = [each for each in found.values() if each is not None]
    if len(routed) < 2:
        return x, routed[0] if routed else None
    return x, xf.tree.map(lambda *parts: torch.cat(parts), *routed)


def forward(
    params: Params,
    tokens: Int[Tensor, "batch seq"],
    config: Config,
    plan: Plan = Plan(),
    segments: Int[Tensor, "batch seq"] | None = None,
) -> Float[Tensor, "batch seq vocab"]:
    """The logits of the token that follows each position."""
    x, _ = run_layers(params, tokens, config, plan, segments)
    return logits(params, plan.in_order(x), config, plan)


def logits(
    params: Params, x: Float[Tensor, "*batch hidden"], config: Config, plan: Plan = Plan()
) -> Float[Tensor, "*batch vocab"]:
    """The logits, from the output of the last layer."""
    x = norm(x, params["norm"], config)
    matrix = params["embed" if config.tied else "head"]
    made = linear(x, matrix)
    made = made if config.logit_scale is None else made / config.logit_scale
    return _lie(attention.Scores(cap=config.logit_cap).capped(made), lambda s: s.logits, plan)


class Routers(NamedTuple):
    """The weights of the router losses: for uneven loads, and for large logits."""

    balance: float = 0.0
    size: float = 0.0


_NO_ROUTERS = Routers()


def loss(
    params: Params,
    batch: Batch,
    config: Config,
    plan: Plan = Plan(),
    count: Float[Tensor, ""] | None = None,
    routers: Routers = _NO_ROUTERS,
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats and at least float32, of the targets that are not IGNORE.

    The sum is divided by `count`; None: the number of targets. If there are experts, the losses of
    routers are added, in proportion to the batch's share of `count`.
    """
    found, routed = losses_and_routed(params, batch, config, plan)
    return mean_loss(found, routed, batch, count, routers)


def mean_loss(
    found: Float[Tensor, "batch seq"],
    routed: Routed | None,
    batch: Batch,
    count: Float[Tensor, ""] | None,
    routers: Routers,
) -> Float[Tensor, ""]:
    """`loss`, from what `losses_and_routed` returns."""
    own, total = target_count(batch), found.sum()
    count = own if count is None else count
    if routed is None or not any(routers):
        return total / count
    even, size = experts.losses(routed)
    return (total + own * (routers.balance * even + routers.size * size)) / count


def losses_and_routed(
    params: Params, batch: Batch, config: Config, plan: Plan = Plan()
) -> tuple[Float[Tensor, "batch seq"], Routed | None]:
    """The cross-entropy of each target, in nats and at least float32; 0 where it is IGNORE.

    With it, the statistics of all layers' routers, if there are experts. Only the logits of
    `plan.loss_chunk` positions of each row exist at a time: if a row is longer, the backward pass
    computes them again.
    """
    x, routed = run_layers(params, batch.tokens, config, plan, batch.segments)
    words = torch.arange(config.vocab, device=x.device)

    def of(x: Tensor, targets: Tensor) -> Tensor:
        scores = attention.wide(logits(params, x, config, plan))
        # By comparing: a gather would bring the shards of the vocabulary together.
        chosen = scores.where(targets[..., None] == words, 0.0).sum(-1)
        found = scores.logsumexp(-1) - chosen
        return found.masked_fill(targets == IGNORE, 0.0)

    return over_chunks(of, x, batch.targets, plan), routed


def over_chunks(
    fun: Callable[[Tensor, Tensor], Any],
    x: Float[Tensor, "batch seq hidden"],
    targets: Int[Tensor, "batch seq"],
    plan: Plan,
) -> Any:
    """What a function of features and targets returns, `plan.loss_chunk` positions at a time.

    Features are those of `run_layers`; what it returns is a tree of ``[batch, seq]``.
    """
    targets = plan.as_divided(targets)
    devices, size = plan.context, plan.loss_chunk
    seq = x.shape[1] // devices  # of each device, which has a part of every chunk
    if seq <= size:
        return xf.tree.map(plan.in_order, fun(x, targets))
    padding = -seq % size

    def chunks(x: Tensor, filler: int) -> Tensor:
        x = x.unflatten(1, (devices, -1))
        x = F.pad(x, (0, 0) * (x.ndim - 3) + (0, padding), value=filler)
        return x.unflatten(2, (-1, size)).movedim(2, 0).flatten(2, 3)

    parts = chunks(x, 0), chunks(targets, IGNORE)
    again = POLICIES["full"]
    _, found = xf.scan(lambda _, part: (None, fun(*part)), None, parts, checkpoint_policy=again)

    def joined(found: Tensor) -> Tensor:
        found = found.unflatten(2, (devices, size)).movedim(0, 2).flatten(2)
        return plan.in_order(found[..., :seq].flatten(1))

    return xf.tree.map(joined, found)


def target_count(batch: Batch) -> Float[Tensor, ""]:
    """How many targets have a loss; at least 1."""
    return (batch.targets != IGNORE).sum().clamp(min=1).float()
