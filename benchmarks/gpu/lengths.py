"""Batches of many lengths within a memory limit, on one GPU: dynamic shapes, and torch.

A Llama 2 with the width of 7B and 4 layers trains on a trace of lengths as in instruction data. The
dynamic step has a program for each of 8 buckets of lengths, with what it keeps for the backward
pass chosen to fit the limit. Each way may use `LIMIT` bytes; a batch that needs more is left out.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch._dynamo.utils
import torch._functorch.config

import xfunc as xf
from benchmarks.dynamic import setting
from benchmarks.gpu.llama import peak_in_use, torch_step, weights
from examples.llama import model, train
from examples.llama.model import Batch
from examples.llama.model.plan import Plan
from examples.llama.train.train_config import Recipe

LIMIT = 36 * 2**30
WAYS = "dynamic", "padded", "eager", "compile"


class Size(NamedTuple):
    """What is trained, and the trace: batches of how many rows, up to how many tokens."""

    model: model.Config
    rows: tuple[int, ...]
    cap: int
    batches: int


FULL = Size(
    model.Config(32000, 4096, 11008, layers=4, heads=32, kv_heads=32), (14, 18), setting.CAP, 32
)
SMALL = Size(model.Config(512, 16, 32, layers=1, heads=2, kv_heads=2), (2,), 128, 2)


def recipe(size: Size) -> Recipe:
    """What is trained."""
    plan = Plan("full", "dense", loss_chunk=size.cap)
    how = {"schedule": "constant", "warmup": 1, "peak_lr": 1e-4}
    return Recipe(size.model, 1000, plan, "mixed", **how)


def batches(size: Size, rows: int) -> list[Batch]:
    """Those of the trace, each as wide as its longest row."""
    lengths = [min(n, size.cap) for n in setting.lengths(rows * size.batches)]
    draw = torch.Generator().manual_seed(0)
    found = []
    for k in range(size.batches):
        some = torch.tensor(lengths[k * rows : (k + 1) * rows])
        tokens = torch.randint(512, (rows, int(some.max())), generator=draw, dtype=torch.int32)
        targets = tokens.roll(-1, 1)
        targets[torch.arange(tokens.shape[1]) >= some[:, None] - 1] = model.IGNORE
        found.append(Batch(tokens, targets))
    return found


def check(small: bool, only: Sequence[str] = ()) -> None:
    """Print a table for each number of rows."""
    size = SMALL if small else FULL
    for rows in size.rows:
        print(f"{rows} rows, {LIMIT / 2**30:.0f} GiB, {size.batches} batches up to {size.cap}\n")
        print("| | targets/s | dynamic / this | peak, GiB | out of memory | programs | loss |")
        print("|---|---|---|---|---|---|---|", flush=True)
        first = 0.0
        for way in only or WAYS:
            command = [sys.executable, "-m", "benchmarks.gpu.lengths", str(rows), way]
            command += ["small"] * small
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"| {way} | {done.stderr[-1500:]} |", flush=True)
                continue
            found = Found(**json.loads(done.stdout.splitlines()[-1]))
            first = first or found.rate
            cells = [f"{found.rate:,.0f}", f"{first / found.rate:.2f}" if found.rate else ""]
            cells += [f"{found.peak / 2**30:.1f}", f"{found.failed} of {size.batches}"]
            print("|", " | ".join([way, *cells, str(found.programs), f"{found.loss:.4f}"]), "|")
        print(flush=True)


@dataclasses.dataclass
class Found:
    """What a way to train took.

    Attributes:
        rate: targets per second, in a pass over the batches after the first.
        peak: bytes.
        failed: batches that were out of memory.
        programs: how many were compiled.
        loss: of the last batch.
    """

    rate: float
    peak: int
    failed: int
    programs: int
    loss: float


@dataclasses.dataclass
class Way:
    """A way to train.

    Attributes:
        step: trains on a batch; returns its loss.
        programs: counts what it has compiled.
        peak: bytes so far.
    """

    step: Callable[[Batch], float]
    programs: Callable[[], int]
    peak: Callable[[], int]


def ours(size: Size, given: Sequence[Batch], way: str) -> Way:
    """xfunc's steps: for all lengths of these batches, or for rows padded to the longest."""
    made = recipe(size)
    kept = train.start(made, weights(size.model))
    buckets = xf.buckets([*(b.tokens.shape[1] for b in given), size.cap], n=8)
    dynamic = train.dynamic_step(made, size.cap, buckets, LIMIT)
    used = set[int]()

    def run(batch: Batch) -> float:
        nonlocal kept
        if way == "padded":
            batch = setting.widened(batch, size.cap)
            kept, metrics = train.train_step(kept, batch, recipe=made)
        else:
            used.add(next(b for b in buckets if b >= batch.tokens.shape[1]))
            kept, metrics = dynamic(kept, batch, None)
        return float(metrics.loss)

    return Way(run, lambda: len(used) or 1, peak_in_use)


def theirs(size: Size, compiled: bool) -> Way:
    """torch's step."""
    device = torch.get_default_device()
    step = torch_step(recipe(size), lambda f: torch.compile(f, dynamic=True) if compiled else f)

    def run(batch: Batch) -> float:
        with torch._functorch.config.patch(activation_memory_budget=0.5):
            return step(batch.tokens.long().to(device), batch.targets.long().to(device))

    def programs() -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    return Way(run, programs, torch.cuda.max_memory_allocated)


def measure(size: Size, rows: int, name: str) -> Found:
    """Train on all batches twice."""
    given, on_gpu = batches(size, rows), torch.cuda.is_available()
    share = LIMIT / torch.cuda.get_device_properties(0).total_memory if on_gpu else 1.0
    if name in ("eager", "compile"):
        if on_gpu:
            torch.cuda.set_per_process_memory_fraction(share)
            torch.set_default_device("cuda")
        way = theirs(size, name == "compile")
    else:
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{share:.4f}"
        way = ours(size, given, name)
    targets = seconds = 0.0
    failed, loss = 0, float("nan")
    for again in (False, True):
        for batch in given:
            start = time.perf_counter()
            try:
                loss = way.step(batch)
            except (torch.OutOfMemoryError, xf.errors.CompileError) as error:
                if "memory" not in str(error).lower() and "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                failed += again
                continue
            if again:
                seconds += time.perf_counter() - start
                targets += int((batch.targets != model.IGNORE).sum())
    rate = targets / seconds if seconds else 0.0
    return Found(rate, way.peak(), failed, way.programs(), loss)


if __name__ == "__main__":
    found = measure(SMALL if sys.argv[3:] else FULL, int(sys.argv[1]), sys.argv[2])
    print(json.dumps(dataclasses.asdict(found)))
