"""The model measured: a small Llama decoder in plain functions of torch tensors.

RMSNorm, rotary embeddings, grouped-query attention, SwiGLU. `jax_llama` is the same in JAX.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes."""

    layers: int = 12
    hidden: int = 256
    intermediate: int = 688
    heads: int = 8
    kv_heads: int = 4
    vocab: int = 512
    batch: int = 2
    seq: int = 64

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def layer_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    """The weights of one layer, ``[in, out]``."""
    kv = c.kv_heads * c.head_dim
    return {
        "norm1": (c.hidden,),
        "wq": (c.hidden, c.hidden),
        "wk": (c.hidden, kv),
        "wv": (c.hidden, kv),
        "wo": (c.hidden, c.hidden),
        "norm2": (c.hidden,),
        "gate": (c.hidden, c.intermediate),
        "up": (c.hidden, c.intermediate),
        "down": (c.intermediate, c.hidden),
    }


def shapes(c: Config) -> dict[str, Any]:
    """The tree of weights, the layers in a list."""
    return {
        "embed": (c.vocab, c.hidden),
        "layers": [layer_shapes(c) for _ in range(c.layers)],
        "norm": (c.hidden,),
        "head": (c.hidden, c.vocab),
    }


def rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    """Divide by the root mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * scale


def rope(c: Config, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, ``[seq, head_dim]``."""
    power = torch.arange(0, c.head_dim, 2, device=device) / c.head_dim
    angles = torch.arange(c.seq, device=device)[:, None] * 10000.0**-power
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs of features of each head."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def block(x: Tensor, w: dict[str, Tensor], cos: Tensor, sin: Tensor, c: Config) -> Tensor:
    """One layer: ``[batch, seq, hidden]`` to the same."""

    def heads(weight: Tensor, n: int) -> Tensor:
        return (h @ weight).reshape(c.batch, c.seq, n, c.head_dim).transpose(1, 2)

    h = rms_norm(x, w["norm1"])
    q = rotate(heads(w["wq"], c.heads), cos, sin)
    k = rotate(heads(w["wk"], c.kv_heads), cos, sin)
    v = heads(w["wv"], c.kv_heads)
    q = q.reshape(c.batch, c.kv_heads, -1, c.seq, c.head_dim)
    k, v = k[:, :, None], v[:, :, None]
    scores = q @ k.transpose(-1, -2) * c.head_dim**-0.5
    position = torch.arange(c.seq, device=x.device)
    future = position > position[:, None]
    mixed = torch.where(future, float("-inf"), scores).softmax(-1) @ v
    mixed = mixed.reshape(c.batch, c.heads, c.seq, c.head_dim).transpose(1, 2)
    x = x + mixed.reshape(c.batch, c.seq, c.hidden) @ w["wo"]
    h = rms_norm(x, w["norm2"])
    return x + (F.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def loss(params: dict[str, Any], tokens: Tensor, c: Config) -> Tensor:
    """Mean cross entropy, with the layers in an unrolled loop."""
    cos, sin = rope(c, tokens.device)
    x = F.embedding(tokens[:, :-1], params["embed"])
    for w in params["layers"]:
        x = block(x, w, cos, sin, c)
    return head(params, x, tokens)


def head(params: dict[str, Any], x: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of what follows each token, from the last layer's output."""
    logits = rms_norm(x, params["norm"]) @ params["head"]
    chosen = logits.take_along_dim(tokens[:, 1:, None], -1).squeeze(-1)
    return (logits.logsumexp(-1) - chosen).mean()
