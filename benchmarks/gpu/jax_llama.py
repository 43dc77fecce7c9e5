"""The step of `benchmarks.gpu.llama` in JAX, with cuDNN's attention."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.train.train_config import Recipe

POLICIES = {
    "all": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def step(recipe: Recipe, weights: Any, batch: torch.Tensor, policy: str) -> Callable[[], float]:
    """A function that makes a step and returns its loss."""
    c = recipe.model
    rope = model.rotary(torch.arange(batch.shape[1] - 1), c)
    cos, sin = (jnp.asarray(x.numpy()) for x in xf.tree.leaves(rope))
    attention = "cudnn" if jax.default_backend() == "gpu" else "xla"

    def norm(x: Any, weight: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + c.norm_eps)
        return weight * (wide * scale).astype(x.dtype)

    def rotated(x: Any) -> Any:
        left, right = jnp.split(x, 2, -1)
        turned = jnp.concatenate([-right, left], -1)
        return (x * cos[:, None] + turned * sin[:, None]).astype(x.dtype)

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        def heads(name: str) -> Any:
            return (h @ w[name].T).reshape(*h.shape[:2], -1, c.head_dim)

        h = norm(x, w["attn_norm"])
        q, k, v = rotated(heads("wq")), rotated(heads("wk")), heads("wv")
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention)
        x = x + mixed.reshape(*h.shape[:2], -1) @ w["wo"].T
        h = norm(x, w["mlp_norm"])
        return x + (jax.nn.silu(h @ w["w_gate"].T) * (h @ w["w_up"].T)) @ w["w_down"].T, None

    def loss(params: Any, tokens: Any) -> Any:
        params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
        x = params["embed"][tokens[:, :-1]]
        x, _ = jax.lax.scan(jax.checkpoint(layer, policy=POLICIES[policy]), x, params["layers"])
        logits = (norm(x, params["norm"]) @ params["embed"].T).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1).squeeze(-1)
        return (jax.nn.logsumexp(logits, -1) - chosen).mean()

    def train(params: Any, state: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        count, means, squares = state[0] + 1, state[1], state[2]
        norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(grads)))
        scale = jnp.minimum(recipe.clip / norm, 1.0)
        b1, b2 = recipe.beta1, recipe.beta2
        means = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * scale * g, means, grads)
        squares = jax.tree.map(
            lambda s, g: b2 * s + (1 - b2) * jnp.square(scale * g), squares, grads
        )

        def update(p: Any, m: Any, s: Any) -> Any:
            change = m / (1 - b1**count) / (jnp.sqrt(s / (1 - b2**count)) + recipe.eps)
            return p - recipe.peak_lr * (change + recipe.weight_decay * p)

        return jax.tree.map(update, params, means, squares), (count, means, squares), value

    kept = jax.tree.map(lambda p: jnp.asarray(p.numpy()), weights)
    zeros = [jax.tree.map(jnp.zeros_like, kept) for _ in range(2)]
    made = kept, (jnp.zeros(()), *zeros)
    del kept, weights, zeros
    tokens = jnp.asarray(batch.numpy())
    compiled = jax.jit(train, donate_argnums=(0, 1))

    def run() -> float:
        nonlocal made
        *made, value = compiled(*made, tokens)
        return float(value)

    return run
