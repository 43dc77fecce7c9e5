"""Tracing: from Python functions to a program, without compiling or running it.

The loss and the gradient of a 12-layer Llama whose layers are an unrolled Python loop; every cache
is emptied before each round. All times are CPU times: each contender is one thread at a time.

xfunc: ``xf.jit(xf.value_and_grad(loss)).lower(shapes)``, up to the serialised HLO.
JAX: ``jax.jit(jax.value_and_grad(loss)).trace(shapes).lower()``, in its own process.
tracer alone: the loss on placeholders, ``torch.autograd.grad``, and the HLO, which xfunc records
with lines, checks and caches around it.
make_fx: ``make_fx(torch.func.grad_and_value(loss), tracing_mode="fake")``, up to the FX graph.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import xfunc as xf
from benchmarks import llama
from benchmarks.peers import answer_of, find_jax
from benchmarks.timing import Contender, Row, race, table
from xfunc.hlo.write import write
from xfunc.trace import recorder

ROUNDS = 7
CLOCK = time.process_time


def main(jax_python: str | None) -> None:
    """Print the table.

    Args:
        jax_python: see `find_jax`.
    """
    c = llama.Config()

    def loss(params: dict[str, Any], tokens: torch.Tensor) -> torch.Tensor:
        return llama.loss(params, tokens, c)

    def build(leaf: Any) -> Any:
        return xf.tree.map(leaf, llama.shapes(c), is_leaf=_is_shape)

    avals = build(lambda s: xf.ShapeDtypeStruct(s, torch.float32))
    tokens = xf.ShapeDtypeStruct((c.batch, c.seq + 1), torch.int64)
    params = build(torch.zeros)
    real_tokens = torch.zeros(tokens.shape, dtype=tokens.dtype)

    def ours() -> int:
        xf.clear_caches()
        lowered = xf.jit(xf.value_and_grad(loss)).lower(avals, tokens)
        return len(lowered.module.to_bytes())

    def theirs() -> Any:
        FakeTensorMode.cache_clear()
        grad_and_value = torch.func.grad_and_value(loss)
        return make_fx(grad_and_value, tracing_mode="fake")(params, real_tokens)

    leaves, structure = xf.tree.flatten(avals)

    def bare() -> int:
        inputs = [recorder.placeholder(a).requires_grad_() for a in leaves]
        given = recorder.placeholder(tokens)
        value = loss(xf.tree.unflatten(structure, inputs), given)
        grads = torch.autograd.grad(value, inputs)
        graph, _ = recorder.lower("bare", [*inputs, given], [value.detach(), *grads])
        return len(write(graph))

    # Not in turns: make_fx leaves a lot of garbage for the next to collect.
    mine = race({"xfunc": Contender(ours)}, ROUNDS, clock=CLOCK)["xfunc"]
    peer = time_jax(find_jax(jax_python), c)
    rows = [Row("JAX, trace and lower", mine, peer, 8, times_less=True)]
    both = race({"xfunc": Contender(ours), "bare": Contender(bare)}, ROUNDS, clock=CLOCK)
    mine = min(mine, both["xfunc"])
    rows.append(Row("the tracer alone", mine, both["bare"], 1.6))
    fx = race({"make_fx": Contender(theirs)}, 3, clock=CLOCK)["make_fx"]
    rows.append(Row("make_fx, fake tensors", mine, fx, 25, times_less=True))
    rows = [dataclasses.replace(r, ours=mine) for r in rows]
    print(table(f"trace: loss and gradient of a Llama of {c.layers} layers", rows))


def time_jax(python: str, c: llama.Config) -> float:
    """Seconds of CPU time that JAX takes."""
    sizes = {**dataclasses.asdict(c), "head_dim": c.head_dim, "shapes": llama.shapes(c)}
    rounds = str(ROUNDS + 1)
    return min(answer_of(python, "benchmarks.jax_llama", "trace", rounds, json.dumps(sizes))[1:])


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple)
