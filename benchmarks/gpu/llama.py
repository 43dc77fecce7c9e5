"""A training step of Llama 3.2 1B on one GPU: exported, in JAX, in eager torch and torch.compile.

Weights and AdamW are in float32, the model computes in bfloat16. Each way trains in a process of
its own, from the same weights on the same tokens.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import xfunc as xf
from benchmarks.training import plain_loss
from examples.llama import model, train
from examples.llama.plan import Plan
from examples.llama.recipe import Recipe

MODEL, ROWS, SEQ = "llama3.2-1b", 2, 4096
WARM, STEPS = 3, 10
PLANS = {
    "cudnn": Plan("everything", "cudnn", loss_chunk=SEQ),
    "cudnn-dots": Plan("dots", "cudnn", loss_chunk=SEQ),
    "blockwise": Plan("full", "blockwise", loss_chunk=1024),
}
WAYS = (*(f"xfunc {name}" for name in PLANS), "jax all", "jax dots", "eager", "compile")


def recipe(plan: Plan = Plan()) -> Recipe:
    """What is trained: all weights decay, as they do in torch and optax unless told otherwise."""
    return Recipe(
        model.CONFIGS[MODEL],
        1000,
        plan,
        "mixed",
        schedule="constant",
        warmup=1,
        peak_lr=1e-4,
        decay_norms=True,
    )


def export(folder: Path, only: Sequence[str] = ()) -> None:
    """Export the steps."""
    tokens: Any = xf.ShapeDtypeStruct((ROWS, SEQ), torch.int32)
    for name, plan in PLANS.items():
        made = recipe(plan)
        weights = model.shapes(made.model, torch.float32)
        state = xf.eval_shape(lambda params, made=made: train.start(made, params), weights)
        step = train.train_step.lower(state, model.Batch(tokens, tokens), recipe=made)
        xf.export.save(step, folder / f"llama-{name}.xfunc")


def check(folder: Path, only: Sequence[str] = ()) -> None:
    """Print the table."""
    print(f"{MODEL}, {ROWS} rows of {SEQ}, {torch.cuda.get_device_name()}\n")
    print("| | tokens/s | xfunc / this | peak, GiB | first step, s | losses |")
    print("|---|---|---|---|---|---|", flush=True)
    first = 0.0
    for way in only or WAYS:
        command = [sys.executable, "-m", "benchmarks.gpu.llama", str(folder), way]
        env = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            print(f"| {way} | {done.stderr[-1500:]} |", flush=True)
            continue
        found = Found(**json.loads(done.stdout.splitlines()[-1]))
        rate = ROWS * SEQ / found.seconds
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


def starting_state(like: Any, config: model.Config) -> Any:
    """The state that an exported step starts from, on the device."""
    zeros = xf.tree.map(lambda a: torch.zeros(a.shape, dtype=a.dtype), like)
    return xf.device_put(zeros._replace(params=weights(config)))


def batch() -> Tensor:
    """Rows of tokens, ``[ROWS, SEQ + 1]``."""
    draw = torch.Generator().manual_seed(1)
    size = ROWS, SEQ + 1
    return torch.randint(512, size, generator=draw, dtype=torch.int32, device="cpu")


def ours(folder: Path, name: str) -> tuple[Callable[[], float], Callable[[], int]]:
    """The exported step; a function that makes one, and one that tells the peak so far."""
    step = xf.export.load(folder / f"llama-{name}.xfunc")
    kept = starting_state(step.in_info[0][0], model.CONFIGS[MODEL])
    there = xf.device_put(model.batch_of(batch()))

    def run() -> float:
        nonlocal kept
        kept, metrics = step(kept, there)
        return float(metrics.loss)

    return run, peak_in_use


def peak_in_use() -> int:
    """Bytes that programs, of xfunc or JAX, have had in use at once."""
    stats = xf.memory_stats()
    assert stats is not None, "this takes a GPU"
    return stats["peak_bytes_in_use"]


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


def theirs(compiled: bool) -> tuple[Callable[[], float], Callable[[], int]]:
    """torch's step, and a function that tells the peak so far."""
    step = torch_step(recipe(), torch.compile if compiled else lambda f: f)
    tokens = batch().cuda().long()
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    return lambda: step(inputs, targets), torch.cuda.max_memory_allocated


def measure(folder: Path, way: str) -> Found:
    """Train."""
    library, _, name = way.partition(" ")
    if library == "xfunc":
        run, peak = ours(folder, name)
    elif library == "jax":
        from benchmarks.gpu import jax_llama

        run, peak = (
            jax_llama.step(recipe(), weights(model.CONFIGS[MODEL]), batch(), name),
            peak_in_use,
        )
    else:
        torch.set_default_device("cuda")
        run, peak = theirs(library == "compile")
    start = time.perf_counter()
    losses = [run()]
    first, times = time.perf_counter() - start, []
    for _ in range(WARM + STEPS):
        start = time.perf_counter()
        losses.append(run())
        times.append(time.perf_counter() - start)
    return Found(statistics.median(times[WARM:]), first, peak(), losses)


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(measure(Path(sys.argv[1]), sys.argv[2]))))
