"""Lowering for absent pods: the train step of Llama 3.1 405B.

Loss, gradient, clipping and AdamW, 126 layers in one scan, batch 1024 of 4096 tokens, parameters,
moments and batch sharded over an abstract mesh; each in its own process. The limits are 0.35 s,
0.6 MB of HLO, 300 MB of growth of the process, and 0.25 of JAX's time for the same step, once
everything is imported. JAX's (`jax_pods`) has the same parts, but ties no shardings together.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import torch

import xfunc as xf
from benchmarks.peers import answer_of, find_jax
from benchmarks.timing import Row, table
from examples.llama import model, train
from examples.llama.model.plan import Plan
from examples.llama.parallel.sharding import AXES, Sharding

CONFIG = model.PUBLISHED["llama3.1-405b"]
PRECISION, BATCH, SEQ, ROUNDS = "bfloat16", 1024, 4096, 12
MESHES = {"1 x 64 x 4": (1, 64, 4), "16 x 64 x 4": (16, 64, 4)}


def main(jax_python: str | None) -> None:
    """Print the table.

    Args:
        jax_python: see `find_jax`.
    """
    python = find_jax(jax_python)
    for name in MESHES:
        first, again, size, grown = answer_of(sys.executable, "benchmarks.pods", name)
        given = json.dumps(sizes(_recipe(name), BATCH, SEQ))
        theirs = answer_of(python, "benchmarks.jax_pods", given)
        rows = [
            Row("JAX, trace and lower, the first time", first, theirs[0], 0.25),
            Row("JAX, trace and lower, again", again, theirs[1], 0.25),
        ]
        print(table(f"pods: the train step of Llama 3.1 405B, data x fsdp x tensor {name}", rows))
        print(f"{size / 1e6:.3f} MB of HLO; the process grew by {grown / 1e6:.0f} MB\n")


def sizes(recipe: train.Recipe, rows: int, seq: int) -> dict[str, Any]:
    """What `benchmarks.jax_pods` needs to know of the step."""
    c, where = recipe.model, recipe.plan.sharding
    weights = model.weights(c)
    settings = "steps peak_lr floor beta1 beta2 eps clip".split()
    wide = model.decayed(c)
    kinds = "batch activations heads features logits".split()
    return {
        "axes": None if where is None else dict(where.mesh.shape),
        "shapes": xf.tree.map(lambda w: [*w.shape], weights),
        "specs": xf.tree.map(lambda w: [*getattr(where or Sharding, w.lies)], weights),
        "lies": {kind: [*getattr(where or Sharding, kind)] for kind in kinds},
        "decay": xf.tree.map(lambda yes: recipe.weight_decay if yes else 0.0, wide),
        "rope_scaling": dataclasses.asdict(c.rope_scaling) if c.rope_scaling else None,
        "head_dim": c.head_dim,
        "rows": rows,
        "seq": seq,
        "dtype": str(recipe.numbers.weights).removeprefix("torch."),
        "warmup": recipe.rising,
        **{name: getattr(recipe, name) for name in settings},
        **{name: getattr(c, name) for name in "vocab heads kv_heads norm_eps rope_theta".split()},
    }


def _recipe(name: str) -> train.Recipe:
    where = Sharding.of(dict(zip(AXES, MESHES[name], strict=False)), abstract=True)
    # The plain program; the one that fits is printed by `python -m examples.llama.aot`.
    plan = Plan(policy="everything", attention="dense", loss_chunk=SEQ, sharding=where)
    return train.Recipe(CONFIG, steps=1000, plan=plan, precision=PRECISION)


def measure(name: str) -> list[float]:
    """CPU seconds to lower, and to lower again; bytes of HLO, and of growth of the process."""
    recipe = _recipe(name)
    state, batch = train.abstract_state(recipe), train.abstract_batch(recipe, BATCH, SEQ)
    xf.default_backend()  # JAX, which its own program has imported, too
    xf.eval_shape(lambda a: a + 1, xf.ShapeDtypeStruct((2,), torch.float32))  # and everything else

    def lower() -> tuple[float, int]:
        xf.clear_caches()
        begin = time.process_time()
        size = len(train.train_step.lower(state, batch, recipe=recipe).module.to_bytes())
        return time.process_time() - begin, size

    before = _resident()
    first, size = lower()
    grown = _resident() - before
    return [first, min(lower()[0] for _ in range(ROUNDS)), size, grown]


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
