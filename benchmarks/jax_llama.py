"""The model of `benchmarks.llama` in JAX: how long it takes to trace and lower, and to train.

`benchmarks.trace` and `benchmarks.step` run it in a separate Python that has JAX. Its arguments are
``trace``, a number of rounds and the sizes as JSON (it prints the times in seconds, as JSON), or
``step``, ``unrolled`` or ``scanned``, and the sizes (it trains a step on request).
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import gc
import json
import math
import sys
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.timing import answer


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
    return (x * cos + jnp.concatenate([-right, left], -1) * sin).astype(x.dtype)


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


def is_shape(x: Any) -> bool:
    """Is it a leaf of the tree of shapes?"""
    return isinstance(x, list) and all(isinstance(d, int) for d in x)


def loss(params: dict[str, Any], tokens: Any, c: Any) -> Any:
    """Mean cross entropy, with the layers in a list or stacked."""
    cos, sin = rope(c)
    x = params["embed"][tokens[:, :-1]]
    if isinstance(params["layers"], list):
        for w in params["layers"]:
            x = block(x, w, cos, sin, c)
    else:
        x, _ = jax.lax.scan(lambda x, w: (block(x, w, cos, sin, c), None), x, params["layers"])
    logits = rms_norm(x, params["norm"]) @ params["head"]
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1).squeeze(-1)
    return (jax.nn.logsumexp(logits, -1) - chosen).mean()


def trace(c: Any, rounds: int) -> None:
    """Print the seconds of CPU time of each round."""
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), c.shapes, is_leaf=is_shape
    )
    tokens = jax.ShapeDtypeStruct((c.batch, c.seq + 1), jnp.int32)
    of_sizes = functools.partial(loss, c=c)
    seconds = []
    for _ in range(rounds):
        jax.clear_caches()
        gc.collect()
        gc.disable()
        start = time.process_time()
        jax.jit(jax.value_and_grad(of_sizes)).trace(params, tokens).lower()
        seconds.append(time.process_time() - start)
        gc.enable()
    print(json.dumps(seconds))


def train(c: Any, form: str) -> None:
    """The step of `benchmarks.step`, on request."""

    def made(shape: list[int]) -> Any:
        return jnp.sin(jnp.arange(math.prod(shape)) % 1009).reshape(shape) * shape[0] ** -0.5

    params = jax.tree.map(made, c.shapes, is_leaf=is_shape)
    if form == "scanned":
        params["layers"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["layers"])
    n = c.batch * (c.seq + 1)
    tokens = (jnp.arange(n) * 7919 % c.vocab).reshape(c.batch, c.seq + 1)

    def step(params: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(functools.partial(loss, c=c))(params, tokens)
        return value, jax.tree.map(lambda p, g: p - c.rate * g, params, grads)

    compiled = jax.jit(step, donate_argnums=0)

    def run() -> float:
        nonlocal params
        value, params = compiled(params, tokens)
        return float(jax.block_until_ready((value, params))[0])

    answer(run)


def main() -> None:
    """Time what is asked for."""
    what, how, sizes = sys.argv[1:]
    c = SimpleNamespace(**json.loads(sizes))
    if what == "trace":
        trace(c, int(how))
    else:
        train(c, how)


if __name__ == "__main__":
    main()
