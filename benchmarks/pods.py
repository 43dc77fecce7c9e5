"""Lowering for absent pods: the train step of Llama 3.1 405B.

Loss, gradient, clipping and AdamW, 126 layers in one scan, batch 1024 of 4096 tokens, parameters,
moments and batch sharded over an abstract mesh; each in its own process. The limits are 0.35 s,
0.6 MB of HLO, and 300 MB of growth of the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.plan import Plan
from examples.llama.sharding import AXES, Sharding
from xfunc.backends.torch_xla import runtime

MESHES = {"1 x 64 x 4": (1, 64, 4), "16 x 64 x 4": (16, 64, 4)}


def main() -> None:
    """Print the table."""
    print("## pods: lowering the train step of Llama 3.1 405B\n")
    print("| data x fsdp x tensor | trace and lower, s | again, s | HLO, MB | process grows, MB |")
    print("|---|---|---|---|---|")
    for name in MESHES:
        command = [sys.executable, "-m", "benchmarks.pods", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        first, again, size, grown = json.loads(done.stdout.splitlines()[-1])
        print(f"| {name} | {first:.2f} | {again:.2f} | {size / 1e6:.3f} | {grown / 1e6:.0f} |")


def measure(name: str) -> list[float]:
    """Seconds to lower, and to lower again; bytes of HLO; bytes by which the process grew."""
    config = model.PUBLISHED["llama3.1-405b"]
    axes: dict[str, int] = dict(zip(AXES, MESHES[name], strict=False))
    where = Sharding.of(axes, abstract=True)
    # The plain program; the one that fits is printed by `python -m examples.llama.aot`.
    plan = Plan(policy="everything", attention="dense", loss_chunk=4096, sharding=where)
    recipe = train.Recipe(config, steps=1000, plan=plan, precision="bfloat16")
    state, batch = train.abstract_state(recipe), train.abstract_batch(recipe, 1024, 4096)
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
    return [first, lower()[0], size, grown]


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
