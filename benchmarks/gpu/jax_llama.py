"""The step of `benchmarks.gpu.llama` in JAX, with cuDNN's attention."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch

import xfunc as xf
from examples.llama import model
from examples.llama.recipe import Recipe

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
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    adamw = optax.chain(
        optax.clip_by_global_norm(recipe.clip),
        optax.adamw(recipe.peak_lr, recipe.beta1, recipe.beta2, weight_decay=recipe.weight_decay),
    )

    def train(params: Any, state: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, tokens)
        updates, state = adamw.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    kept = jax.tree.map(lambda p: jnp.asarray(p.numpy()), weights)
    made = kept, adamw.init(kept)
    del kept, weights
    tokens = jnp.asarray(batch.numpy())
    compiled = jax.jit(train, donate_argnums=(0, 1))

    def run() -> float:
        nonlocal made
        *made, value = compiled(*made, tokens)
        return float(value)

    return run
