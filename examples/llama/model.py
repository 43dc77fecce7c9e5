"""Llama 3 as pure functions of a dictionary of tensors.

The weights of all layers are stacked, `[layers, out, in]`, and `xf.scan` runs one layer over them:
it is traced and compiled once, however many there are. The conventions are Hugging Face's, so that
published weights fit: linear maps without bias, rotary embeddings on the two halves of a head,
grouped-query attention.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf

from . import attention, splash
from .linear import linear
from .plan import POLICIES, Plan

Params: TypeAlias = dict[str, Any]
Rope: TypeAlias = tuple[Float[Tensor, "seq head_dim"], Float[Tensor, "seq head_dim"]]

IGNORE = -100  # a target that has no loss


class Batch(NamedTuple):
    """Rows of text: one document each, or several that do not see each other."""

    tokens: Int[Tensor, "batch seq"]
    targets: Int[Tensor, "batch seq"]  # the token that follows each, or IGNORE
    segments: Int[Tensor, "batch seq"] | None = None  # the document of each token; 0: padding


def batch_of(windows: Int[Tensor, "batch seq+1"]) -> Batch:
    """A batch of one document a row, in which each token is to be told from those before it."""
    return Batch(windows[:, :-1], windows[:, 1:])


@dataclass(frozen=True)
class RopeScaling:
    """How Llama 3.1 stretches slow rotary frequencies for long contexts."""

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class Config:
    """The sizes of one model."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool = False  # the output matrix is the embedding matrix
    rope_theta: float = 500000.0
    norm_eps: float = 1e-5
    rope_scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "intermediate", "layers", "heads", "kv_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: use 1 or more")
        if self.hidden % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden is {self.hidden}, heads is {self.heads}, kv_heads is {self.kv_heads}: "
                "let each head have an even number of features, and kv_heads divide heads"
            )

    @property
    def head_dim(self) -> int:
        """The features of one attention head."""
        return self.hidden // self.heads

    @classmethod
    def tiny(cls, vocab: int = 256, *, tied: bool = False) -> "Config":
        """A model small enough for a unit test."""
        return cls(vocab, hidden=32, intermediate=80, layers=2, heads=4, kv_heads=2, tied=tied)


_3_1, _3_2 = RopeScaling(), RopeScaling(factor=32.0)
PUBLISHED = {
    "llama3.2-1b": Config(128256, 2048, 8192, 16, 32, 8, tied=True, rope_scaling=_3_2),
    "llama3.2-3b": Config(128256, 3072, 8192, 28, 24, 8, tied=True, rope_scaling=_3_2),
    "llama3.1-8b": Config(128256, 4096, 14336, 32, 32, 8, rope_scaling=_3_1),
    "llama3.1-70b": Config(128256, 8192, 28672, 80, 64, 8, rope_scaling=_3_1),
    "llama3.1-405b": Config(128256, 16384, 53248, 126, 128, 8, rope_scaling=_3_1),
}
TINY = {  # A tokenizer that knows all bytes has 258 tokens or more.
    "tiny": Config.tiny(512),
    "tiny-tied": Config.tiny(512, tied=True),
    "tiny-scaled": Config(
        512, 64, 96, layers=3, heads=4, kv_heads=4, rope_scaling=RopeScaling(original_context=64)
    ),
}
SMALL = {
    "demo-1m": Config(2048, 128, 384, layers=4, heads=4, kv_heads=2, tied=True),
    "small-11m": Config(2048, 384, 1024, layers=6, heads=6, kv_heads=6, tied=True),
}
CONFIGS = TINY | SMALL | PUBLISHED


@functools.partial(xf.jit, static_argnames=("config", "dtype"))
def init(config: Config, seed: int | Tensor = 0, dtype: torch.dtype = torch.float32) -> Params:
    """Random parameters, on the device: norms are one, matrices normal, scaled by their fan-in.

    They depend on nothing but `seed`. Under a `jit` with ``out_shardings`` each device makes its
    part only.
    """
    shapes = _tree(config, lambda *shape: shape, lambda *shape: shape)
    leaves = xf.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, tuple))
    keys = iter(xf.random.split(xf.random.key(seed), len(leaves)))

    def matrix(*shape: int) -> Tensor:
        return xf.random.normal(next(keys), shape, dtype) * shape[-1] ** -0.5

    def scale(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=dtype)

    return _tree(config, matrix, scale)


def shapes(config: Config, dtype: torch.dtype = torch.bfloat16) -> Params:
    """The tree that `init` would return, of shapes only: 405 billion parameters fit on a laptop."""

    def leaf(*shape: int) -> xf.ShapeDtypeStruct:
        return xf.ShapeDtypeStruct(shape, dtype)

    return _tree(config, leaf, leaf)


def decayed(config: Config, norms: bool, embeddings: bool) -> Params:
    """Whether weight decay is for each parameter; matrices in layers always decay."""
    tree = _tree(config, lambda *_: True, lambda *_: norms)
    return tree | {"embed": embeddings}


def _tree(c: Config, matrix: Callable[..., Any], scale: Callable[..., Any]) -> Params:
    kv = c.kv_heads * c.head_dim
    params = {
        "embed": matrix(c.vocab, c.hidden),
        "layers": {
            "attn_norm": scale(c.layers, c.hidden),
            "wq": matrix(c.layers, c.hidden, c.hidden),
            "wk": matrix(c.layers, kv, c.hidden),
            "wv": matrix(c.layers, kv, c.hidden),
            "wo": matrix(c.layers, c.hidden, c.hidden),
            "mlp_norm": scale(c.layers, c.hidden),
            "w_gate": matrix(c.layers, c.intermediate, c.hidden),
            "w_up": matrix(c.layers, c.intermediate, c.hidden),
            "w_down": matrix(c.layers, c.hidden, c.intermediate),
        },
        "norm": scale(c.hidden),
    }
    return params if c.tied else params | {"head": matrix(c.vocab, c.hidden)}


def rms_norm(
    x: Float[Tensor, "*batch hidden"], weight: Float[Tensor, " hidden"], eps: float
) -> Float[Tensor, "*batch hidden"]:
    """Divide by the root mean square, found in float32, and multiply by the weight."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def rotary(positions: Int[Tensor, " seq"], config: Config) -> Rope:
    """Cosine and sine of each position's angle, the two halves of a head alike."""
    half = torch.arange(0, config.head_dim, 2, device=positions.device) / config.head_dim
    frequencies = config.rope_theta**-half
    if config.rope_scaling is not None:
        frequencies = _stretched(frequencies, config.rope_scaling)
    angles = positions[:, None] * frequencies
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def _stretched(frequencies: Float[Tensor, " half"], c: RopeScaling) -> Float[Tensor, " half"]:
    """Frequencies divided by a factor where they turn seldom within the original context.

    Those that turn more than `high_freq_factor` times stay, those that turn less than
    `low_freq_factor` times are divided, and between the two it goes over from one to the other.

    Source: `rope_type` "llama3" of Hugging Face's transformers.
    """
    turns = c.original_context * frequencies / (2 * math.pi)
    kept = (turns - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return frequencies * (kept + (1 - kept) / c.factor)


def rotate(
    x: Float[Tensor, "batch heads seq head_dim"], rope: Rope
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Turn each pair (i, i + head_dim / 2) of features by the angle of its position."""
    cos, sin = (angle.to(x.dtype) for angle in rope)
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def heads(
    x: Float[Tensor, "batch seq hidden"], layer: Params, rope: Rope, config: Config, plan: Plan
) -> tuple[attention.Heads, attention.Heads, attention.Heads]:
    """Queries, keys and values: as many heads of both of the latter as `config.kv_heads`."""

    def made(name: str, n: int) -> attention.Heads:
        split = linear(x, layer[name]).unflatten(-1, (n, config.head_dim))
        return _lie(split.transpose(1, 2), "heads", plan)

    q, k = made("wq", config.heads), made("wk", config.kv_heads)
    return rotate(q, rope), rotate(k, rope), made("wv", config.kv_heads)


def attend(
    x: Float[Tensor, "batch seq hidden"],
    layer: Params,
    rope: Rope,
    segments: Int[Tensor, "batch seq"] | None,
    config: Config,
    plan: Plan,
) -> Float[Tensor, "batch seq hidden"]:
    """Causal self-attention, several query heads to each head of keys and values."""
    q, k, v = heads(x, layer, rope, config, plan)
    if plan.attention == "dense":
        mixed = attention.dense(q, k, v, segments)
    elif plan.attention == "blockwise":
        mixed = attention.blockwise(q, k, v, segments, block=plan.block)
    else:
        mixed = splash.splash_attention(q, k, v, segments, block=plan.block, sharding=plan.sharding)
    mixed = _lie(mixed, "heads", plan)
    return linear(mixed.transpose(1, 2).flatten(2), layer["wo"])


def mlp(
    x: Float[Tensor, "*batch hidden"], layer: Params, plan: Plan | None = None
) -> Float[Tensor, "*batch hidden"]:
    """The gated feed-forward map, SwiGLU."""
    gate, up = linear(x, layer["w_gate"]), linear(x, layer["w_up"])
    features = F.silu(gate) * up
    if plan is not None:
        features = _lie(features, "features", plan)
    return linear(features, layer["w_down"])


def _lie(x: Tensor, kind: str, plan: Plan) -> Tensor:
    """`x`, to lie on the mesh as an array of its kind does."""
    s = plan.sharding
    return x if s is None else s.constrain(x, getattr(s, kind))


def features(
    params: Params,
    tokens: Int[Tensor, "batch seq"],
    config: Config,
    plan: Plan,
    segments: Int[Tensor, "batch seq"] | None,
) -> Float[Tensor, "batch seq hidden"]:
    """What the last layer makes of each position, before the last norm."""
    rope = rotary(torch.arange(tokens.shape[1], device=tokens.device), config)

    def block(x: Tensor, layer: Params) -> tuple[Tensor, None]:
        x = xf.checkpoint_name(x, "layer_input")
        normed = rms_norm(x, layer["attn_norm"], config.norm_eps)
        x = x + attend(normed, layer, rope, segments, config, plan)
        x = x + mlp(rms_norm(x, layer["mlp_norm"], config.norm_eps), layer, plan)
        return _lie(x, "activations", plan), None

    x = _lie(F.embedding(tokens, params["embed"]), "activations", plan)
    x, _ = xf.scan(block, x, params["layers"], checkpoint_policy=POLICIES[plan.policy])
    return x


def forward(
    params: Params,
    tokens: Int[Tensor, "batch seq"],
    config: Config,
    plan: Plan = Plan(),
    segments: Int[Tensor, "batch seq"] | None = None,
) -> Float[Tensor, "batch seq vocab"]:
    """The logits of the token that follows each position."""
    return logits(params, features(params, tokens, config, plan, segments), config, plan)


def logits(
    params: Params, x: Float[Tensor, "*batch hidden"], config: Config, plan: Plan = Plan()
) -> Float[Tensor, "*batch vocab"]:
    """The logits of what the last layer makes."""
    x = rms_norm(x, params["norm"], config.norm_eps)
    matrix = params["embed" if config.tied else "head"]
    return _lie(linear(x, matrix), "logits", plan)


def loss(
    params: Params,
    batch: Batch,
    config: Config,
    plan: Plan = Plan(),
    count: Float[Tensor, ""] | None = None,
) -> Float[Tensor, ""]:
    """Mean cross entropy, in nats and at least float32, of the targets that are not IGNORE.

    Args:
        params: as of `init`.
        batch: rows of tokens.
        config: the sizes.
        plan: how it is computed.
        count: what the sum is divided by; None: the number of targets.
    """
    total = losses(params, batch, config, plan).sum()
    return total / (target_count(batch) if count is None else count)


def losses(
    params: Params, batch: Batch, config: Config, plan: Plan = Plan()
) -> Float[Tensor, "batch seq"]:
    """The cross entropy of each target, in nats and at least float32; 0 where it is IGNORE.

    The logits of `plan.loss_chunk` positions of each row are there at a time; the backward pass
    computes them again.
    """
    x = features(params, batch.tokens, config, plan, batch.segments)
    words = torch.arange(config.vocab, device=x.device)
    seq = x.shape[1]
    size = min(plan.loss_chunk, seq)
    padding = -seq % size

    def chunks(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, size)).movedim(1, 0)

    def chunk(_: None, part: tuple[Tensor, Tensor]) -> tuple[None, Tensor]:
        x, targets = part
        scores = attention.wide(logits(params, x, config, plan))
        # By comparing, and not by a gather, which would bring the parts of the vocabulary together.
        chosen = scores.where(targets[..., None] == words, 0.0).sum(-1)
        found = scores.logsumexp(-1) - chosen
        return None, found.masked_fill(targets == IGNORE, 0.0)

    parts = F.pad(x, (0, 0, 0, padding)), F.pad(batch.targets, (0, padding), value=IGNORE)
    _, found = xf.scan(
        chunk,
        None,
        xf.tree.map(chunks, parts),
        checkpoint_policy=xf.checkpoint_policies.nothing_saveable,
    )
    return found.movedim(0, 1).flatten(1)[:, :seq]


def target_count(batch: Batch) -> Float[Tensor, ""]:
    """How many targets have a loss; at least 1."""
    return (batch.targets != IGNORE).sum().clamp(min=1).float()
