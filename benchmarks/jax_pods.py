"""The step of `benchmarks.pods` in JAX: how long it takes to trace and lower.

`benchmarks.pods` runs it in a separate Python that has JAX. Its arguments are the axes of the mesh
and the sizes, as JSON; it prints, as JSON, the seconds of the first time, the fastest time
afterwards, with empty caches, and the bytes of StableHLO.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.jax_llama import is_shape, loss

ROUNDS = 5
ROWS, INTO, OUT_OF = P(("data", "fsdp")), P(None, "fsdp", "tensor"), P(None, "tensor", "fsdp")
SPECS: dict[str, Any] = {
    "embed": P("tensor", "fsdp"),
    "head": P("fsdp", "tensor"),
    "norm": P("fsdp"),
    "layers": {
        **dict.fromkeys(("norm1", "norm2"), P(None, "fsdp")),
        **dict.fromkeys(("wq", "wk", "wv", "gate", "up"), INTO),
        **dict.fromkeys(("wo", "down"), OUT_OF),
    },
}


def main() -> None:
    """Time it."""
    axes, sizes = map(json.loads, sys.argv[1:])
    c = SimpleNamespace(**sizes)
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes))

    def placed(shape: list[int], spec: P, dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    def all_placed(dtype: Any) -> Any:
        place = functools.partial(placed, dtype=dtype)
        return jax.tree.map(place, c.shapes, SPECS, is_leaf=is_shape)

    def where(tree: Any) -> Any:
        return jax.tree.map(lambda a: a.sharding, tree)

    params, moments = all_placed(jnp.dtype(c.weights)), all_placed(jnp.float32)
    opt = placed([], P(), jnp.int32), moments, moments
    tokens = placed([c.batch, c.seq + 1], ROWS, jnp.int32)

    def computed(params: Any, tokens: Any) -> Any:
        return loss(jax.tree.map(lambda p: p.astype(c.arithmetic), params), tokens, c)

    def step(params: Any, opt: Any, tokens: Any) -> Any:
        value, grads = jax.value_and_grad(computed)(params, tokens)
        squares = [jnp.square(g.astype(jnp.float32)).sum() for g in jax.tree.leaves(grads)]
        norm = jnp.sqrt(sum(squares))
        scale = jnp.minimum(1, c.clip / norm)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32) * scale, grads)
        count, mean, square = opt
        count = count + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
        square = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, square, grads)
        lr = c.rate * jnp.minimum(1, count / 100)

        def update(p: Any, m: Any, s: Any) -> Any:
            change = m / (1 - 0.9**count) / (jnp.sqrt(s / (1 - 0.95**count)) + 1e-8)
            wide = p.astype(jnp.float32)
            return (wide - lr * (change + 0.1 * wide)).astype(p.dtype)

        new = jax.tree.map(update, params, mean, square)
        return jax.lax.with_sharding_constraint((new, mean, square), state), count, value, norm

    state = where(params), where(moments), where(moments)

    def lower() -> tuple[float, int]:
        jax.clear_caches()
        begin = time.perf_counter()
        traced = jax.jit(step, donate_argnums=(0, 1)).trace(params, opt, tokens)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
        return time.perf_counter() - begin, len(text)

    first, size = lower()
    again = min(lower()[0] for _ in range(ROUNDS))
    print(json.dumps([first, again, size]))


if __name__ == "__main__":
    main()
