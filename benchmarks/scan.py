"""Scan: one training step of a 12-layer decoder, in `xf.scan` and in `jax.lax.scan`.

Loss, gradients and SGD, with the weights of the layers stacked and donated, and the same Python
functions for both but for the layer (`llama.block` and `jax_llama.block`): to trace and lower it
with empty caches, to compile it as well, and to run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

import xfunc as xf
from benchmarks import jax_llama, llama
from benchmarks.timing import Contender, Loop, Row, race, table

C = llama.Config()
RATE = 1e-3
ROUNDS = 7


def step_of(value_and_grad: Any, scan: Any, block: Any) -> Callable[..., Any]:
    """The step, with what a library has for it."""

    def loss(layers: Any, x: Any, cos: Any, sin: Any) -> Any:
        x, _ = scan(lambda x, w: (block(x, w, cos, sin, C), None), x, layers)
        return (x * x).mean()

    def step(layers: Any, *given: Any) -> tuple[Any, Any]:
        value, grads = value_and_grad(loss)(layers, *given)
        return value, {k: p - RATE * grads[k] for k, p in layers.items()}

    return step


def arguments() -> tuple[Any, ...]:
    """The weights, the input, and the rotary angles' cosine and sine."""
    draw = torch.Generator().manual_seed(0)
    layers = {
        k: torch.randn((C.layers, *s), generator=draw) * s[-1] ** -0.5
        for k, s in llama.layer_shapes(C).items()
    }
    x = torch.randn(C.batch, C.seq, C.hidden, generator=draw)
    return layers, x, *llama.rope(C, x.device)


def main() -> None:
    """Print the table."""
    given = arguments()
    ours, our_args = step_of(xf.value_and_grad, xf.scan, llama.block), xf.device_put(given)
    theirs = step_of(jax.value_and_grad, jax.lax.scan, jax_llama.block)
    their_args = xf.tree.map(lambda t: jnp.asarray(t.numpy()), given)

    def lower() -> Any:
        xf.clear_caches()
        lowered: Any = xf.jit(ours, donate_argnums=0).lower(*our_args)
        lowered.module.to_bytes()
        return lowered

    def lower_theirs() -> Any:
        jax.clear_caches()
        return jax.jit(theirs, donate_argnums=0).lower(*their_args)

    def trained(step: Any, block_until_ready: Any, args: Any) -> Loop:
        layers, *others = args
        return Loop(lambda state: block_until_ready(step(state[1], *others)), (None, layers))

    loops = {
        "xfunc": trained(xf.jit(ours, donate_argnums=0), xf.block_until_ready, our_args),
        "jax": trained(jax.jit(theirs, donate_argnums=0), jax.block_until_ready, their_args),
    }
    turns = {
        "trace and lower": ((lower, lower_theirs), ROUNDS),
        "the same, and compile": (
            (lambda: lower().compile(), lambda: lower_theirs().compile()),
            ROUNDS // 2,
        ),
        "run": (loops.values(), 10 * ROUNDS),
    }
    rows = []
    for name, (runs, rounds) in turns.items():
        best = race({n: Contender(r) for n, r in zip(loops, runs, strict=True)}, rounds)
        rows.append(Row(f"jax.lax.scan: {name}", best["xfunc"], best["jax"], 1))
    losses = [float(loop.state[0]) for loop in loops.values()]
    assert abs(losses[0] / losses[1] - 1) < 1e-3, f"the losses differ: {losses}"
    print(table(f"scan: one training step of {C.layers} layers", rows))
