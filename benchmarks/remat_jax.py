"""What JAX keeps between the passes of a Llama 3.1 8B layer, under each checkpoint policy.

Run from the top of the repository with a Python that has JAX, ``python -m benchmarks.remat_jax``;
it writes `benchmarks/data/remat_jax.json`. Everything is traced on shapes: no array is made.

The layer is that of `examples.llama.model`, with weights `[in, out]` as is usual in JAX. A
residual is a value that ``jax.vjp`` passes from the forward pass to the backward pass. Inputs of
the layer (x, the weights, the rotary tables) are there in both passes, and are not counted.
Residuals that depend on no input, such as the mask, are summed separately, as ``constant_bytes``:
in one program with both passes, XLA can make them where they are used. Making them does not count
as work.

Recomputation is counted as the work of the two passes together beyond their work without a
checkpoint, in floating-point operations: 2mnk for a matrix product, one for each element of
an elementwise operation, one less than the terms for a sum or maximum, none for moving or
converting data: where a product in bfloat16 is formed in float32, only some front ends say so.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import checkpoint_policies as policies
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal
from jax.interpreters import partial_eval

DATA = Path(__file__).with_name("data") / "remat_jax.json"
SEQ, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 8192, 4096, 14336, 32, 8, 128
NAMES = ("attn_out", "mlp_in")

# The arguments of jax.checkpoint for each; None: without jax.checkpoint.
POLICIES: dict[str, dict[str, Any] | None] = {
    "no checkpoint": None,
    "everything_saveable": {"policy": policies.everything_saveable},
    "nothing_saveable": {"policy": policies.nothing_saveable},
    "dots_saveable": {"policy": policies.dots_saveable},
    "dots_with_no_batch_dims_saveable": {"policy": policies.dots_with_no_batch_dims_saveable},
    "save_only_these_names": {"policy": policies.save_only_these_names(*NAMES)},
    "save_and_offload_only_these_names": {
        "policy": policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[NAMES[1]],
            names_which_can_be_offloaded=[NAMES[0]],
            offload_src="device",
            offload_dst="pinned_host",
        )
    },
    "offload_dot_with_no_batch_dims": {
        "policy": policies.offload_dot_with_no_batch_dims("device", "pinned_host")
    },
}


def rms_norm(x: Any, weight: Any) -> Any:
    """Divide by the root mean square, computed in float32, and multiply by the weight."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + 1e-5)
    return weight * (wide * scale).astype(x.dtype)


def rotate(x: Any, rope: tuple[Any, Any]) -> Any:
    """Turn the pairs of features of each head."""
    cos, sin = (angle.astype(x.dtype) for angle in rope)
    left, right = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-right, left], -1) * sin


def attention(x: Any, w: dict[str, Any], rope: tuple[Any, Any]) -> Any:
    """Causal self-attention, with several query heads per key-value head."""

    def heads(weight: Any, n: int) -> Any:
        return (x @ weight).reshape(1, SEQ, n, HEAD_DIM).swapaxes(1, 2)

    q = rotate(heads(w["wq"], HEADS), rope)
    k = rotate(heads(w["wk"], KV_HEADS), rope)
    v = heads(w["wv"], KV_HEADS)
    q = q.reshape(1, KV_HEADS, -1, SEQ, HEAD_DIM)
    k, v = k[:, :, None], v[:, :, None]
    scores = (q @ k.swapaxes(-1, -2) * HEAD_DIM**-0.5).astype(jnp.float32)
    position = jnp.arange(SEQ)
    scores: Any = jnp.where(position > position[:, None], -jnp.inf, scores)
    mixed = jax.nn.softmax(scores).astype(x.dtype) @ v
    mixed = mixed.reshape(1, HEADS, SEQ, HEAD_DIM).swapaxes(1, 2)
    return mixed.reshape(1, SEQ, HEADS * HEAD_DIM) @ w["wo"]


def layer(x: Any, w: dict[str, Any], rope: tuple[Any, Any]) -> Any:
    """One layer: ``[1, seq, hidden]`` to the same."""
    x = x + checkpoint_name(attention(rms_norm(x, w["attn_norm"]), w, rope), NAMES[0])
    h = checkpoint_name(rms_norm(x, w["mlp_norm"]), NAMES[1])
    return x + (jax.nn.silu(h @ w["w_gate"]) * (h @ w["w_up"])) @ w["w_down"]


def inputs() -> tuple[Any, dict[str, Any], tuple[Any, Any]]:
    """The shapes of the layer's arguments."""

    def half(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    rope = jax.ShapeDtypeStruct((SEQ, HEAD_DIM), jnp.float32)
    weights = {
        "attn_norm": half(HIDDEN),
        "wq": half(HIDDEN, HEADS * HEAD_DIM),
        "wk": half(HIDDEN, KV_HEADS * HEAD_DIM),
        "wv": half(HIDDEN, KV_HEADS * HEAD_DIM),
        "wo": half(HEADS * HEAD_DIM, HIDDEN),
        "mlp_norm": half(HIDDEN),
        "w_gate": half(HIDDEN, INTERMEDIATE),
        "w_up": half(HIDDEN, INTERMEDIATE),
        "w_down": half(INTERMEDIATE, HIDDEN),
    }
    return half(1, SEQ, HIDDEN), weights, (rope, rope)


# -- what is kept ---------------------------------------------------------------------------------


def passes(function: Callable[..., Any]) -> tuple[Any, Any]:
    """The jaxprs of the forward pass, ``args -> (y, *residuals)``, and of the backward pass."""
    x, w, rope = inputs()

    def forward(x: Any, w: Any, rope: Any) -> tuple[Any, Any]:
        return jax.vjp(lambda x, w: function(x, w, rope), x, w)

    def backward(pullback: Any, ct: Any) -> Any:
        return pullback(ct)

    y, pullback = jax.eval_shape(forward, x, w, rope)
    return flat(forward, x, w, rope), flat(backward, pullback, y)


def flat(function: Callable[..., Any], *args: Any) -> Any:
    """A jaxpr without calls or dead code."""
    outer = jax.make_jaxpr(function)(*args)
    inner = jax.make_jaxpr(partial(_run, outer.jaxpr, outer.consts))(*outer.in_avals).jaxpr
    return partial_eval.dce_jaxpr(inner, [True] * len(inner.outvars), instantiate=True)[0]


def _run(jaxpr: Any, consts: Any, *args: Any) -> list[Any]:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    for e in jaxpr.eqns:
        given = [v.val if isinstance(v, Literal) else values[v] for v in e.invars]
        called = e.params.get("jaxpr")  # closed in jit, open in checkpoint
        if called is not None:
            made = _run(getattr(called, "jaxpr", called), getattr(called, "consts", ()), *given)
        else:
            made = e.primitive.bind(*given, **e.params)
        made = made if isinstance(made, list) else [made]
        values.update(zip(e.outvars, made, strict=True))
    return [v.val if isinstance(v, Literal) else values[v] for v in jaxpr.outvars]


def varying(jaxpr: Any) -> set[Any]:
    """The values that depend on an input."""
    varies = set(jaxpr.invars)
    for e in jaxpr.eqns:
        if not varies.isdisjoint(v for v in e.invars if not isinstance(v, Literal)):
            varies.update(e.outvars)
    return varies


def residuals(forward: Any) -> list[dict[str, Any]]:
    """The values the forward pass passes on, each once, without the inputs."""
    made = {v: e for e in forward.eqns for v in e.outvars}
    varies = varying(forward)
    handed = dict.fromkeys(v for v in forward.outvars[1:] if not isinstance(v, Literal))
    found = []
    for v in handed:
        if v not in made:
            continue  # an input
        maker = made[v]
        while maker.primitive.name in ("reduce_precision", "device_put"):
            maker = made[maker.invars[0]]
        found.append(
            {
                "shape": list(v.aval.shape),
                "dtype": str(v.aval.dtype),
                "bytes": v.aval.size * v.aval.dtype.itemsize,
                "made_by": maker.params.get("name", maker.primitive.name),
                "where": "host" if "host" in str(v.aval).lower() else "device",
                "constant": v not in varies,
            }
        )
    return found


# -- the work -------------------------------------------------------------------------------------

# jax.checkpoint puts `reduce_precision` on residuals; it is not the layer's work.
MOVES = frozenset(
    "broadcast_in_dim reshape transpose squeeze split concatenate iota name stop_gradient "
    "device_put convert_element_type reduce_precision".split()
)


def flops(jaxpr: Any) -> tuple[int, int]:
    """Floating-point operations on what depends on inputs: of matrix products, and in all."""
    products = others = 0
    varies = varying(jaxpr)
    for e in jaxpr.eqns:
        if e.outvars[0] not in varies:
            continue
        name, size = e.primitive.name, e.outvars[0].aval.size
        if name == "dot_general":
            (contracted, _), _ = e.params["dimension_numbers"]
            products += 2 * size * math.prod(e.invars[0].aval.shape[d] for d in contracted)
        elif name in ("reduce_sum", "reduce_max"):
            others += e.invars[0].aval.size - size
        elif name not in MOVES:
            others += size
    return products, products + others


def _sum(kept: Iterable[dict[str, Any]]) -> int:
    return sum(r["bytes"] for r in kept)


def main() -> None:
    """Write the table."""
    table: dict[str, Any] = {}
    base = 0, 0
    for name, options in POLICIES.items():
        function = layer if options is None else jax.checkpoint(layer, **options)
        forward, backward = passes(function)
        both = [sum(p) for p in zip(flops(forward), flops(backward), strict=True)]
        if options is None:
            base = both[0], both[1]
        kept = residuals(forward)
        table[name] = {
            "bytes": _sum(r for r in kept if r["where"] == "device" and not r["constant"]),
            "host_bytes": _sum(r for r in kept if r["where"] == "host"),
            "constant_bytes": _sum(r for r in kept if r["constant"]),
            "recomputed_matmul_flops": both[0] - base[0],
            "recomputed_flops": both[1] - base[1],
            "residuals": [_line(r) for r in kept],
        }
        print(f"{name:36}", {k: f"{v:.4g}" for k, v in table[name].items() if k != "residuals"})
    data = {
        "versions": {"jax": jax.__version__},
        "layer": {"seq": SEQ, "batch": 1, "dtype": "bfloat16", "hidden": HIDDEN}
        | {"intermediate": INTERMEDIATE, "heads": HEADS, "kv_heads": KV_HEADS},
        "matmul_flops": base[0],
        "flops": base[1],
        "policies": table,
    }
    DATA.write_text(json.dumps(data, indent=1) + "\n")


def _line(r: dict[str, Any]) -> str:
    aval = f"{r['dtype']}{r['shape']}".replace(" ", "")
    where = " host" * (r["where"] == "host")
    return f"{r['bytes']} {aval} {r['made_by']}" + where + " constant" * r["constant"]


if __name__ == "__main__":
    main()
