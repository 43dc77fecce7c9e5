"""A training step of Llama 3.2 1B on one GPU: xfunc, JAX, eager torch and torch.compile.

Weights and AdamW are in float32, the model computes in bfloat16. Each way trains in a process of
its own, from the same weights on the same tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from benchmarks.training import plain_loss
from examples.llama import model, train
from examples.llama.model.plan import Plan
from examples.llama.train.train_config import Recipe

WARM, STEPS = 3, 10
PLANS = {
    "cudnn": Plan("everything", "cudnn", loss_chunk=4096),
    "cudnn-dots": Plan("dots", "cudnn", loss_chunk=4096),
    "cudnn-dots-attention": Plan("dots-attention", "cudnn", loss_chunk=4096),
    "blockwise": Plan("full", "blockwise", loss_chunk=1024),
}
WAYS = (*(f"xfunc {name}" for name in PLANS), "jax all", "jax dots", "eager", "compile")


class Size(NamedTuple):
    """What is trained, and on how many rows of how many tokens."""

    model: model.Config
    rows: int
    seq: int


FULL = Size(model.CONFIGS["llama3.2-1b"], 2, 4096)
SMALL = Size(model.Config(512, 16, 32, layers=1, heads=2, kv_heads=2, tied=True), 2, 8)


def recipe(c: model.Config, plan: Plan = Plan()) -> Recipe:
    """How it is trained: no weight decays, as torch and optax decay norms too."""
    how = {"schedule": "constant", "warmup": 1, "peak_lr": 1e-4, "weight_decay": 0.0}
    return Recipe(c, 1000, plan, "mixed", **how)


def check(small: bool, only: Sequence[str] = ()) -> None:
    """Print the table."""
    size = SMALL if small else FULL
    print(f"{size}\n")
    print("| | tokens/s | xfunc / this | peak, GiB | first step, s | losses |")
    print("|---|---|---|---|---|---|", flush=True)
    first = 0.0
    on_gpu = torch.cuda.is_available()
    for way in only or [w for w in WAYS if on_gpu or "cudnn" not in w]:
        command = [sys.executable, "-m", "benchmarks.gpu.llama", way, *["small"] * small]
        env = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            print(f"| {way} | {done.stderr[-1500:]} |", flush=True)
            continue
        found = Found(**json.loads(done.stdout.splitlines()[-1]))
        rate = size.rows * size.seq / found.seconds
        first = first or rate
        losses = ", ".join(f"{x:.4f}" for x in (found.losses[0], found.losses[-1]))
        cells = [f"{rate:,.0f}", f"{first / rate:.2f}", f"{found.peak / 2**30:.1f}"]
        print("|", " | ".join([way, *cells, f"{found.first:.0f}", losses]), "|", flush=True)


@dataclasses.dataclass
class Found:
    """What a way to train took.

    Attributes:
        seconds: of a step; the median.
        first: seconds of the first step, with compilation.
        peak: bytes.
        losses: of all steps.
    """

    seconds: float
    first: float
    peak: int
    losses: list[float]


def weights(config: model.Config) -> Any:
    """The weights that all start from, on the CPU."""
    draw = torch.Generator().manual_seed(0)

    def made(w: Any) -> Tensor:
        with torch.device("cpu"):
            if w.kind != "matrix":
                return torch.ones(w.shape)
            return torch.randn(w.shape, generator=draw) * w.shape[-1] ** -0.5

    return xf.tree.map(made, model.weights(config))


def batch(size: Size) -> Tensor:
    """Rows of tokens, each with one more to predict."""
    draw = torch.Generator().manual_seed(1)
    shape = size.rows, size.seq + 1
    return torch.randint(512, shape, generator=draw, dtype=torch.int32, device="cpu")


def ours(made: Recipe, tokens: Tensor) -> Callable[[], float]:
    """A function that makes a step, and returns its loss."""
    kept = train.start(made, weights(made.model))
    there = xf.device_put(model.batch_of(tokens))

    def run() -> float:
        nonlocal kept
        kept, metrics = train.train_step(kept, there, recipe=made)
        return float(metrics.loss)

    return run


def peak_in_use() -> int:
    """Bytes that programs, of xfunc or JAX, have had in use at once."""
    return (xf.memory_stats() or {}).get("peak_bytes_in_use", 0)  # none on a CPU


def torch_step(made: Recipe, wrap: Callable[[Any], Any]) -> Callable[[Tensor, Tensor], float]:
    """The same in torch, of tokens and targets; `wrap` compiles the loss, or does not."""
    device = torch.get_default_device()
    params = xf.tree.map(lambda p: p.to(device).requires_grad_(), weights(made.model))
    leaves = xf.tree.leaves(params)
    adamw = torch.optim.AdamW(
        leaves, made.peak_lr, (made.beta1, made.beta2), fused=True, weight_decay=made.weight_decay
    )

    def loss_of(params: Any, tokens: Tensor, targets: Tensor) -> Tensor:
        narrow = made.numbers.computing(params)
        return plain_loss(narrow, tokens, targets, None, c=made.model)

    forward = wrap(loss_of)

    def run(tokens: Tensor, targets: Tensor) -> float:
        adamw.zero_grad()
        loss = forward(params, tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(leaves, made.clip)
        adamw.step()
        return loss.item()

    return run


def measure(way: str, size: Size) -> Found:
    """Train."""
    library, _, name = way.partition(" ")
    peak = peak_in_use
    if library == "xfunc":
        run = ours(recipe(size.model, PLANS[name]), batch(size))
    elif library == "jax":
        from benchmarks.gpu import jax_llama

        run = jax_llama.step(recipe(size.model), weights(size.model), batch(size), name)
    else:
        peak = torch.cuda.max_memory_allocated
        torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
        step = torch_step(recipe(size.model), torch.compile if way == "compile" else lambda f: f)
        tokens = batch(size).to(torch.get_default_device()).long()
        run = functools.partial(step, tokens[:, :-1], tokens[:, 1:])
    start = time.perf_counter()
    losses = [run()]
    first, times = time.perf_counter() - start, []
    for _ in range(WARM + STEPS):
        start = time.perf_counter()
        losses.append(run())
        times.append(time.perf_counter() - start)
    return Found(statistics.median(times[WARM:]), first, peak(), losses)


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(measure(sys.argv[1], SMALL if sys.argv[2:] else FULL))))
