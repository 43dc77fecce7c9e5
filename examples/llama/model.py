"""Llama 3 as pure functions of a dictionary of tensors.

The weights of all layers are stacked, `[layers, out, in]`, and `xf.scan` runs one layer over them:
it is traced and compiled once, however many there are. The conventions are Hugging Face's, so that
published weights fit: linear maps without bias, rotary embeddings on the two halves of a head,
grouped-query attention. Llama 3.1's rescaled rotary frequencies, for contexts beyond 8192 tokens,
are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf

Params: TypeAlias = dict[str, Any]
Rope: TypeAlias = tuple[Float[Tensor, "seq head_dim"], Float[Tensor, "seq head_dim"]]


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

    @property
    def head_dim(self) -> int:
        """The features of one attention head."""
        return self.hidden // self.heads

    @classmethod
    def tiny(cls, vocab: int = 256, *, tied: bool = False) -> "Config":
        """A model small enough for a unit test."""
        return cls(vocab, hidden=32, intermediate=80, layers=2, heads=4, kv_heads=2, tied=tied)


PUBLISHED = {
    "llama3.2-1b": Config(128256, 2048, 8192, layers=16, heads=32, kv_heads=8, tied=True),
    "llama3.2-3b": Config(128256, 3072, 8192, layers=28, heads=24, kv_heads=8, tied=True),
    "llama3.1-8b": Config(128256, 4096, 14336, layers=32, heads=32, kv_heads=8),
    "llama3.1-70b": Config(128256, 8192, 28672, layers=80, heads=64, kv_heads=8),
    "llama3.1-405b": Config(128256, 16384, 53248, layers=126, heads=128, kv_heads=8),
}


def init(config: Config, seed: int = 0, dtype: torch.dtype = torch.float32) -> Params:
    """Random parameters on the CPU: norms are one, matrices normal, scaled by their fan-in."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator) * shape[-1] ** -0.5).to(dtype)

    def scale(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=dtype)

    return _tree(config, matrix, scale)


def shapes(config: Config, dtype: torch.dtype = torch.bfloat16) -> Params:
    """The tree that `init` would return, of shapes only: 405 billion parameters fit on a laptop."""

    def leaf(*shape: int) -> xf.ShapeDtypeStruct:
        return xf.ShapeDtypeStruct(shape, dtype)

    return _tree(config, leaf, leaf)


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
    angles = positions[:, None] * config.rope_theta**-half
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(
    x: Float[Tensor, "batch heads seq head_dim"], rope: Rope
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Turn each pair (i, i + head_dim / 2) of features by the angle of its position."""
    cos, sin = (angle.to(x.dtype) for angle in rope)
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def attention(
    x: Float[Tensor, "batch seq hidden"], layer: Params, rope: Rope, config: Config
) -> Float[Tensor, "batch seq hidden"]:
    """Causal self-attention, several query heads to each head of keys and values."""

    def heads(weight: Tensor, n: int) -> Float[Tensor, "batch n seq head_dim"]:
        return F.linear(x, weight).unflatten(-1, (n, config.head_dim)).transpose(1, 2)

    q = rotate(heads(layer["wq"], config.heads), rope)
    k = rotate(heads(layer["wk"], config.kv_heads), rope)
    v = heads(layer["wv"], config.kv_heads)

    # Queries that share a key head form a group: [batch, kv_heads, group, seq, head_dim].
    q, k, v = q.unflatten(1, (config.kv_heads, -1)), k[:, :, None], v[:, :, None]
    scores = (q @ k.mT * config.head_dim**-0.5).float()
    position = torch.arange(x.shape[1], device=x.device)
    scores = scores.masked_fill(position > position[:, None], float("-inf"))
    mixed = scores.softmax(-1).to(x.dtype) @ v
    return F.linear(mixed.flatten(1, 2).transpose(1, 2).flatten(2), layer["wo"])


def mlp(x: Float[Tensor, "*batch hidden"], layer: Params) -> Float[Tensor, "*batch hidden"]:
    """The gated feed-forward map, SwiGLU."""
    gate, up = F.linear(x, layer["w_gate"]), F.linear(x, layer["w_up"])
    return F.linear(F.silu(gate) * up, layer["w_down"])


def forward(
    params: Params, tokens: Int[Tensor, "batch seq"], config: Config
) -> Float[Tensor, "batch seq vocab"]:
    """The logits of the token that follows each position."""
    rope = rotary(torch.arange(tokens.shape[1], device=tokens.device), config)

    def block(x: Tensor, layer: Params) -> tuple[Tensor, None]:
        x = x + attention(rms_norm(x, layer["attn_norm"], config.norm_eps), layer, rope, config)
        x = x + mlp(rms_norm(x, layer["mlp_norm"], config.norm_eps), layer)
        return x, None

    x = F.embedding(tokens, params["embed"])
    x, _ = xf.scan(block, x, params["layers"])
    x = rms_norm(x, params["norm"], config.norm_eps)
    return F.linear(x, params["embed" if config.tied else "head"])


def loss(params: Params, batch: Int[Tensor, "batch seq+1"], config: Config) -> Float[Tensor, ""]:
    """Mean cross entropy, in nats and float32, of each token given those before it."""
    logits = forward(params, batch[:, :-1], config).float()
    chosen = logits.take_along_dim(batch[:, 1:, None], -1).squeeze(-1)
    return (logits.logsumexp(-1) - chosen).mean()
