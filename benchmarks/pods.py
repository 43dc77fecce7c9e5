"""Lowering for absent pods: the train step of Llama 3.1 405B.

Loss, gradient, clipping and AdamW, 126 layers in one scan, batch 1024 of 4096 tokens, parameters,
moments and batch sharded over an abstract mesh; each in its own process. The limits are 0.35 s,
0.6 MB of HLO, 300 MB of growth of the process, and 0.25 of JAX's time for the same step, once
everything is imported. JAX's (`jax_pods`) has no guard against steps that are not finite, and ties
no shardings together.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

import xfunc as xf
from benchmarks.peers import answer_of, find_jax
from examples.llama import model, train
from examples.llama.plan import Plan
from examples.llama.precision import PRECISIONS
from examples.llama.sharding import AXES, Sharding
from xfunc.backends.torch_xla import runtime

CONFIG = model.PUBLISHED["llama3.1-405b"]
PRECISION, BATCH, SEQ, ROUNDS = "bfloat16", 1024, 4096, 5
MESHES = {"1 x 64 x 4": (1, 64, 4), "16 x 64 x 4": (16, 64, 4)}


def main(jax_python: str | None) -> None:
    """Print the table.

    Args:
        jax_python: a Python that has JAX; None: look for one.
    """
    print("## pods: lowering the train step of Llama 3.1 405B\n")
    print(
        "| data x fsdp x tensor | trace and lower, s | again, s | HLO, MB | process grows, MB "
        "| JAX, s | again, s | again, xfunc / JAX |"
    )
    print("|---|---|---|---|---|---|---|---|")
    python = find_jax(jax_python)
    for name in MESHES:
        first, again, size, grown = answer_of(sys.executable, "benchmarks.pods", name)
        row = f"| {name} | {first:.2f} | {again:.2f} | {size / 1e6:.3f} | {grown / 1e6:.0f} |"
        if python is not None:
            given = json.dumps(_axes(name)), json.dumps(_sizes())
            theirs = answer_of(python, "benchmarks.jax_pods", *given)
            row += f" {theirs[0]:.2f} | {theirs[1]:.2f} | {again / theirs[1]:.2f} |"
        print(row)


def _axes(name: str) -> dict[str, int]:
    return dict(zip(AXES, MESHES[name], strict=False))


def _sizes() -> dict[str, Any]:
    """What `benchmarks.jax_pods` needs to know of the step."""
    c, n = CONFIG, CONFIG.layers
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    into = {"wq": q, "wk": kv, "wv": kv, "gate": c.intermediate, "up": c.intermediate}
    layers = {
        **{name: [n, c.hidden, size] for name, size in into.items()},
        "wo": [n, q, c.hidden],
        "down": [n, c.intermediate, c.hidden],
        "norm1": [n, c.hidden],
        "norm2": [n, c.hidden],
    }
    shapes = {"embed": [c.vocab, c.hidden], "head": [c.hidden, c.vocab], "norm": [c.hidden]}
    numbers = PRECISIONS[PRECISION]
    dtypes = {"weights": numbers.weights, "arithmetic": numbers.arithmetic}
    return {
        "shapes": {**shapes, "layers": layers},
        "batch": BATCH,
        "seq": SEQ,
        "hidden": c.hidden,
        "heads": c.heads,
        "kv_heads": c.kv_heads,
        "head_dim": c.head_dim,
        **{name: str(dtype).removeprefix("torch.") for name, dtype in dtypes.items()},
        "clip": 1.0,
        "rate": 3e-4,
    }


def measure(name: str) -> list[float]:
    """Seconds to lower, and to lower again; bytes of HLO; bytes by which the process grew."""
    where = Sharding.of(_axes(name), abstract=True)
    # The plain program; the one that fits is printed by `python -m examples.llama.aot`.
    plan = Plan(policy="everything", attention="dense", loss_chunk=SEQ, sharding=where)
    recipe = train.Recipe(CONFIG, steps=1000, plan=plan, precision=PRECISION)
    state, batch = train.abstract_state(recipe), train.abstract_batch(recipe, BATCH, SEQ)
    runtime.xla()
    xf.eval_shape(lambda a: a + 1, xf.ShapeDtypeStruct((2,), torch.float32))  # imports everything

    def lower() -> tuple[float, int]:
        xf.clear_caches()
        begin = time.perf_counter()
        size = len(train.train_step.lower(state, batch, recipe=recipe).module.to_bytes())
        return time.perf_counter() - begin, size

    before = _resident()
    first, size = lower()
    grown = _resident() - before
    return [first, min(lower()[0] for _ in range(ROUNDS)), size, grown]


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
