"""The step of `benchmarks.pods` in JAX: how long it takes to trace and lower.

It is the step of `examples.llama.train` part by part: llama3's rotary frequencies, grouped-query
attention with scores and norms in float32, targets without a loss, clipping, AdamW with a cosine
schedule, the check that skips bad steps, and the same constraints of shardings.

`benchmarks.pods` runs it in a separate Python that has JAX. Its argument is `benchmarks.pods.sizes`
as JSON; it prints, as JSON, the seconds of CPU time of the first time, the fastest afterwards, with
empty caches, and the bytes of StableHLO.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import math
import sys
import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.jax_llama import is_shape

ROUNDS = 12
IGNORE, MASKED = -100, -1e30  # as in `examples.llama`


class State(NamedTuple):
    """What a step changes."""

    params: Any
    step: Any
    mean: Any
    square: Any


class Batch(NamedTuple):
    """Rows of tokens, and what follows each."""

    tokens: Any
    targets: Any


class Step:
    """The step for some sizes, on an abstract mesh or, without axes, on one device."""

    def __init__(self, sizes: dict[str, Any]):
        self.c = SimpleNamespace(**sizes)
        axes = self.c.axes
        self._mesh = AbstractMesh(tuple(axes.values()), tuple(axes)) if axes else None

    def __call__(self, state: State, batch: Batch) -> tuple[State, tuple[Any, ...]]:
        """The new state, and the metrics."""
        c = self.c
        count = jnp.maximum((batch.targets != IGNORE).sum(), 1).astype(jnp.float32)
        loss, grads = jax.value_and_grad(self.loss)(state.params, batch, count)
        squares = [jnp.square(g.astype(jnp.float32)).sum() for g in jax.tree.leaves(grads)]
        norm = jnp.sqrt(jnp.stack(squares).sum())
        scale = jnp.minimum(c.clip / norm, 1.0)
        grads = jax.tree.map(lambda g: (g.astype(jnp.float32) * scale).astype(g.dtype), grads)
        rate = self._rate(state.step)
        new = self._adamw(grads, state, rate)
        bad = ~jnp.isfinite(jnp.stack([loss, norm])).all()
        new = jax.tree.map(lambda new, old: jnp.where(bad, old, new), new, state)
        if self._mesh is not None:
            new = jax.lax.with_sharding_constraint(new, self._places())
        return new, (loss, norm, rate, count, bad)

    def loss(self, params: Any, batch: Batch, count: Any) -> Any:
        """The mean cross entropy."""
        c = self.c
        x = self._lie(params["embed"][batch.tokens], "activations")
        cos, sin = self._rope(batch.tokens.shape[1])

        def layer(x: Any, w: Any) -> tuple[Any, None]:
            x = x + self._attend(self._norm(x, w["attn_norm"]), w, cos, sin)
            h = self._norm(x, w["mlp_norm"])
            features = jax.nn.silu(h @ w["w_gate"].T) * (h @ w["w_up"].T)
            x = x + self._lie(features, "features") @ w["w_down"].T
            return self._lie(x, "activations"), None

        x, _ = jax.lax.scan(layer, x, params["layers"])
        logits = self._norm(x, params["norm"]) @ params["head"].T
        scores = self._lie(logits, "logits").astype(jnp.float32)
        same = batch.targets[..., None] == jnp.arange(c.vocab)
        chosen: Any = jnp.where(same, scores, 0.0)
        found = jax.nn.logsumexp(scores, -1) - chosen.sum(-1)
        losses: Any = jnp.where(batch.targets == IGNORE, 0.0, found)
        return losses.sum() / count

    def abstract(self) -> tuple[State, Batch]:
        """The shapes and shardings of the arguments."""
        c = self.c

        def placed(shape: list[int], dtype: Any, spec: list[Any]) -> Any:
            where = None if self._mesh is None else NamedSharding(self._mesh, _spec(spec))
            return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

        def every(dtype: Any) -> Any:
            def of(shape: list[int], spec: list[Any]) -> Any:
                return placed(shape, dtype, spec)

            return jax.tree.map(of, c.shapes, c.specs, is_leaf=is_shape)

        number = placed([], jnp.int32, [])
        wide, tokens = every(jnp.float32), placed([c.rows, c.seq], jnp.int32, c.lies["batch"])
        params = every(jnp.dtype(c.dtype))
        return State(params, number, wide, wide), Batch(tokens, tokens)

    def _places(self) -> Any:
        return jax.tree.map(lambda a: a.sharding, self.abstract()[0])

    def _lie(self, x: Any, kind: str) -> Any:
        if self._mesh is None:
            return x
        where = NamedSharding(self._mesh, _spec(self.c.lies[kind]))
        return jax.lax.with_sharding_constraint(x, where)

    def _norm(self, x: Any, weight: Any) -> Any:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + self.c.norm_eps)
        return weight * (wide * scale).astype(x.dtype)

    def _rope(self, seq: int) -> tuple[Any, Any]:
        c, scaling = self.c, SimpleNamespace(**self.c.rope_scaling)
        rates = c.rope_theta ** -(jnp.arange(0, c.head_dim, 2) / c.head_dim)
        turns = scaling.original_context * rates / (2 * math.pi)
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
        rates = rates * (kept + (1 - kept) / scaling.factor)
        angles = jnp.arange(seq)[..., None] * rates
        angles = jnp.concatenate([angles, angles], -1)
        return jnp.cos(angles), jnp.sin(angles)

    def _attend(self, x: Any, w: Any, cos: Any, sin: Any) -> Any:
        c = self.c

        def heads(name: str, n: int) -> Any:
            split = (x @ w[name].T).reshape(*x.shape[:2], n, c.head_dim)
            return self._lie(split.swapaxes(1, 2), "heads")

        def rotated(x: Any) -> Any:
            left, right = jnp.split(x, 2, -1)
            turned = jnp.concatenate([-right, left], -1)
            return x * cos.astype(x.dtype) + turned * sin.astype(x.dtype)

        q, k = rotated(heads("wq", c.heads)), rotated(heads("wk", c.kv_heads))
        v = heads("wv", c.kv_heads)
        position = jnp.arange(x.shape[1])
        seen = (position <= position[:, None])[None]
        q = q.reshape(q.shape[0], c.kv_heads, -1, *q.shape[2:])
        scores = jnp.einsum("bkgqd,bksd->bkgqs", q, k) * c.head_dim**-0.5
        masked: Any = jnp.where(seen[:, None, None], scores.astype(jnp.float32), MASKED)
        weights = jax.nn.softmax(masked, -1).astype(v.dtype)
        mixed = jnp.einsum("bkgqs,bksd->bkgqd", weights, v)
        mixed = self._lie(mixed.reshape(x.shape[0], c.heads, *mixed.shape[3:]), "heads")
        return mixed.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ w["wo"].T

    def _rate(self, step: Any) -> Any:
        c = self.c
        rate = c.peak_lr * jnp.minimum((step + 1) / c.warmup, 1.0)
        fallen = jnp.clip((step - c.warmup) / (c.steps - 1 - c.warmup), 0.0, 1.0)
        return rate * (c.floor + (1 - c.floor) * (1 + jnp.cos(math.pi * fallen)) / 2)

    def _adamw(self, grads: Any, state: State, rate: Any) -> State:
        c, count = self.c, state.step + 1

        def wide(x: Any) -> Any:
            return x.astype(jnp.float32)

        mean = jax.tree.map(lambda m, g: c.beta1 * m + (1 - c.beta1) * wide(g), state.mean, grads)
        square = jax.tree.map(
            lambda s, g: c.beta2 * s + (1 - c.beta2) * jnp.square(wide(g)), state.square, grads
        )
        unbias1, unbias2 = (-jnp.expm1(count * math.log(b)) for b in (c.beta1, c.beta2))

        def update(p: Any, m: Any, s: Any, decay: float) -> Any:
            change = m / unbias1 / (jnp.sqrt(s / unbias2) + c.eps) + decay * wide(p)
            return (wide(p) - rate * change).astype(p.dtype)

        params = jax.tree.map(update, state.params, mean, square, c.decay)
        return State(params, count, mean, square)


def _spec(entries: list[Any]) -> P:
    return P(*(tuple(e) if isinstance(e, list) else e for e in entries))


def main() -> None:
    """Time it."""
    step = Step(json.loads(sys.argv[1]))
    arguments = step.abstract()

    def lower() -> tuple[float, int]:
        jax.clear_caches()
        begin = time.process_time()
        traced = jax.jit(step, donate_argnums=0).trace(*arguments)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
        return time.process_time() - begin, len(text)

    first, size = lower()
    again = min(lower()[0] for _ in range(ROUNDS))
    print(json.dumps([first, again, size]))


if __name__ == "__main__":
    main()
