"""The model of `benchmarks.llama` in JAX, and how long JAX takes to trace and lower it.

`benchmarks.trace` runs it as a script, in a separate Python that has JAX. Its arguments are the
sizes as JSON and a number of rounds; it prints the times in seconds, as JSON.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import gc
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp


def rms_norm(x: Any, scale: Any) -> Any:
    """Divide by the root mean square."""
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale


def rope(c: Any) -> tuple[Any, Any]:
    """Cosine and sine of every position's angles, ``[seq, head_dim]``."""
    power = jnp.arange(0, c.head_dim, 2) / c.head_dim
    angles = jnp.arange(c.seq)[:, None] * 10000.0**-power
    angles = jnp.concatenate([angles, angles], -1)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Turn the pairs of features of each head."""
    left, right = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-right, left], -1) * sin


def block(x: Any, w: dict[str, Any], cos: Any, sin: Any, c: Any) -> Any:
    """One layer: ``[batch, seq, hidden]`` to the same."""

    def heads(weight: Any, n: int) -> Any:
        return (h @ weight).reshape(c.batch, c.seq, n, c.head_dim).swapaxes(1, 2)

    h = rms_norm(x, w["norm1"])
    q = rotate(heads(w["wq"], c.heads), cos, sin)
    k = rotate(heads(w["wk"], c.kv_heads), cos, sin)
    v = heads(w["wv"], c.kv_heads)
    q = q.reshape(c.batch, c.kv_heads, -1, c.seq, c.head_dim)
    k, v = k[:, :, None], v[:, :, None]
    scores = q @ k.swapaxes(-1, -2) * c.head_dim**-0.5
    position = jnp.arange(c.seq)
    scores: Any = jnp.where(position > position[:, None], -jnp.inf, scores)
    mixed = jax.nn.softmax(scores) @ v
    mixed = mixed.reshape(c.batch, c.heads, c.seq, c.head_dim).swapaxes(1, 2)
    x = x + mixed.reshape(c.batch, c.seq, c.hidden) @ w["wo"]
    h = rms_norm(x, w["norm2"])
    return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def main() -> None:
    """Print the seconds of each round."""
    c = SimpleNamespace(**json.loads(sys.argv[1]))

    def loss(params: dict[str, Any], tokens: Any) -> Any:
        cos, sin = rope(c)
        x = params["embed"][tokens[:, :-1]]
        for w in params["layers"]:
            x = block(x, w, cos, sin, c)
        logits = rms_norm(x, params["norm"]) @ params["head"]
        chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1).squeeze(-1)
        return (jax.nn.logsumexp(logits, -1) - chosen).mean()

    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        c.shapes,
        is_leaf=lambda x: isinstance(x, list) and all(isinstance(d, int) for d in x),
    )
    tokens = jax.ShapeDtypeStruct((c.batch, c.seq + 1), jnp.int32)
    seconds = []
    for _ in range(int(sys.argv[2])):
        jax.clear_caches()
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        jax.jit(jax.value_and_grad(loss)).trace(params, tokens).lower()
        seconds.append(time.perf_counter() - start)
        gc.enable()
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
