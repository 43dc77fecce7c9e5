"""Batches of many lengths within a memory limit, on one GPU: exported for all of them, and torch.

A Llama 2 with the width of 7B and 4 layers trains on a trace of lengths as in instruction data. The
exported step has a program for each of 8 buckets of lengths, with what it keeps for the backward
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
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.utils
import torch._functorch.config

import xfunc as xf
from benchmarks.dynamic import setting
from benchmarks.gpu.llama import peak_in_use, starting_state, torch_step
from examples.llama import model, train
from examples.llama.model import Batch
from examples.llama.plan import Plan
from examples.llama.recipe import Recipe

CONFIG = model.Config(32000, 4096, 11008, layers=4, heads=32, kv_heads=32)
ROWS, CAP, LIMIT, BATCHES = (14, 18), setting.CAP, 36 * 2**30, 32
WAYS = "dynamic", "padded", "eager", "compile"


def recipe() -> Recipe:
    """What is trained."""
    plan = Plan("full", "dense", loss_chunk=CAP)
    how = {"schedule": "constant", "warmup": 1, "peak_lr": 1e-4, "decay_norms": True}
    return Recipe(CONFIG, 1000, plan, "mixed", **how)


def batches(rows: int) -> list[Batch]:
    """Those of the trace, each as wide as its longest row."""
    lengths = setting.lengths(rows * BATCHES)
    draw = torch.Generator().manual_seed(0)
    found = []
    for k in range(BATCHES):
        some = torch.tensor(lengths[k * rows : (k + 1) * rows])
        tokens = torch.randint(512, (rows, int(some.max())), generator=draw, dtype=torch.int32)
        targets = tokens.roll(-1, 1)
        targets[torch.arange(tokens.shape[1]) >= some[:, None] - 1] = model.IGNORE
        found.append(Batch(tokens, targets))
    return found


def export(folder: Path, only: Sequence[str] = ()) -> None:
    """Export the steps: for all lengths, and for rows padded to `CAP`."""
    made = recipe()
    state = xf.eval_shape(lambda p: train.start(made, p), model.shapes(CONFIG, torch.float32))
    for rows in ROWS:
        widths = [b.tokens.shape[1] for b in batches(rows)]
        step = train.dynamic_step(made, CAP, xf.buckets([*widths, CAP], n=8), LIMIT)
        tokens: Any = xf.ShapeDtypeStruct((rows, xf.Dim("S", max=CAP)), torch.int32)
        lowered = step.lower(state, Batch(tokens, tokens), None)
        xf.export.save(lowered, folder / f"lengths-{rows}-dynamic.xfunc")
        tokens = xf.ShapeDtypeStruct((rows, CAP), torch.int32)
        padded = train.train_step.lower(state, Batch(tokens, tokens), recipe=made)
        xf.export.save(padded, folder / f"lengths-{rows}-padded.xfunc")


def check(folder: Path, only: Sequence[str] = ()) -> None:
    """Print a table for each number of rows."""
    for rows in ROWS:
        print(f"{rows} rows, {LIMIT / 2**30:.0f} GiB, {BATCHES} batches up to {CAP} tokens\n")
        print("| | targets/s | dynamic / this | peak, GiB | out of memory | programs | loss |")
        print("|---|---|---|---|---|---|---|", flush=True)
        first = 0.0
        for way in only or WAYS:
            command = [sys.executable, "-m", "benchmarks.gpu.lengths", str(folder), str(rows), way]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"| {way} | {done.stderr[-1500:]} |", flush=True)
                continue
            found = Found(**json.loads(done.stdout.splitlines()[-1]))
            first = first or found.rate
            cells = [f"{found.rate:,.0f}", f"{first / found.rate:.2f}" if found.rate else ""]
            cells += [f"{found.peak / 2**30:.1f}", f"{found.failed} of {BATCHES}"]
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
class _Way:
    """A way to train.

    Attributes:
        step: trains on a batch; returns its loss.
        programs: counts what it has compiled.
        peak: bytes so far.
    """

    step: Callable[[Batch], float]
    programs: Callable[[], int]
    peak: Callable[[], int]


def _ours(folder: Path, rows: int, way: str) -> _Way:
    step = xf.export.load(folder / f"lengths-{rows}-{way}.xfunc")
    kept = starting_state(step.in_info[0][0], CONFIG)
    used = set()

    def run(batch: Batch) -> float:
        nonlocal kept
        width = batch.tokens.shape[1]
        if way == "padded":
            kept, metrics = step(kept, setting.widened(batch, CAP))
        else:
            used.add(next(env["S"] for env, _ in step.buckets if env["S"] >= width))
            kept, metrics = step(kept, batch, None)
        return float(metrics.loss)

    return _Way(run, lambda: len(used) or 1, peak_in_use)


def _theirs(compiled: bool) -> _Way:
    torch.cuda.set_per_process_memory_fraction(
        LIMIT / torch.cuda.get_device_properties(0).total_memory
    )
    step = torch_step(recipe(), lambda f: torch.compile(f, dynamic=True) if compiled else f)

    def run(batch: Batch) -> float:
        with torch._functorch.config.patch(activation_memory_budget=0.5):
            return step(batch.tokens.long().cuda(), batch.targets.long().cuda())

    def programs() -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    return _Way(run, programs, torch.cuda.max_memory_allocated)


def measure(folder: Path, rows: int, name: str) -> Found:
    """Train on all batches twice."""
    if name in ("eager", "compile"):
        torch.set_default_device("cuda")
        way = _theirs(name == "compile")
    else:
        share = LIMIT / torch.cuda.get_device_properties(0).total_memory
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{share:.4f}"
        way = _ours(folder, rows, name)
    with torch.device("cpu"):
        given = batches(rows)
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
    found = measure(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    print(json.dumps(dataclasses.asdict(found)))
