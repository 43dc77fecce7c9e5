"""Training on rows of many lengths, next to the ways without dynamic shapes, by CPU time.

All train the same model on the same documents, 8 a batch, sorted by length within windows, and are
measured on one core. A rate is of tokens that have a target: padding is not counted.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo.utils
import torch._functorch.config
from torch import Tensor

import xfunc as xf
from benchmarks.dynamic import setting
from benchmarks.dynamic.setting import CAP
from benchmarks.training import plain_loss, plain_step
from examples.llama import model, train
from examples.llama.data.corpus import Part
from examples.llama.model import Batch
from examples.llama.train import allocation
from examples.llama.train.train_config import Recipe

DOCUMENTS, ROWS, BATCHES, ROUNDS = 512, 8, 3, 3
BUDGETS = 1.0, 0.5


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to train.

    Attributes:
        step: trains on a batch; returns its loss.
        batches: those measured, as it wants them.
        targets: in a batch, on average over all.
        programs: counts what it has compiled.
    """

    step: Callable[[Batch], Tensor]
    batches: Sequence[Batch]
    targets: float
    programs: Callable[[], int] = lambda: 0


def main() -> None:
    """Print the table."""
    on_one_core("free")


def on_one_core(table: str) -> None:
    """Print a table, in a process bound to one core: see `benchmarks.training.main`."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        subprocess.run([sys.executable, "-m", "benchmarks.dynamic.training", table], check=True)
    finally:
        os.sched_setaffinity(0, cores)


def measure(table: str) -> None:
    """Print a table."""
    allocation.keep_memory()
    torch.set_num_threads(1)
    part = setting.documents(DOCUMENTS)
    if table == "free":
        _compare(_free(part), "Nothing limits memory; all values are kept for the backward pass.")
    else:
        _capped(part)


def _capped(part: Part) -> None:
    batches = setting.by_length(part, 2 * ROWS, 2)
    made = setting.recipe("full")
    like: Any = xf.tree.map(lambda x: xf.ShapeDtypeStruct(x.shape, x.dtype), _wide(batches)[0])
    limit = setting.lowered(like, made).compile().memory_analysis().peak_memory_in_bytes
    contenders = {
        "xfunc, dynamic": _dynamic(made, batches, limit),
        f"padding to {CAP}, computing everything again": _static(made, batches),
        **_torch(made, batches),
    }
    title = f"{2 * ROWS} rows in the {limit / 2**20:.0f} MiB that padding takes at least"
    _compare(contenders, f"{title}, by XLA's buffer assignment.")


def _free(part: Part) -> dict[str, Contender]:
    made, batches = setting.recipe("everything"), setting.by_length(part, ROWS, BATCHES)
    packed = setting.packed(part, ROWS // 4, 4)
    found = {
        "xfunc, dynamic": _dynamic(made, batches, None),
        f"padding to {CAP}": _static(made, batches),
        "a program for each exact shape": _jitted(made, batches, _targets(batches)),
        f"packed rows of {CAP}, with segment masks": _jitted(made, packed, _targets(packed)),
    }
    return found | _torch(made, batches)


def _torch(made: Recipe, batches: Sequence[Batch]) -> dict[str, Contender]:
    """Plain torch at the exact shapes, which keeps what it likes."""
    found = {"eager torch": _plain(made, plain_loss, batches)}
    for budget in BUDGETS:
        # By its code torch would know the function that it has compiled with another budget.
        code = plain_loss.__code__.replace(co_name=f"loss_{budget}")
        loss = types.FunctionType(code, plain_loss.__globals__)
        loss.__kwdefaults__ = plain_loss.__kwdefaults__
        compiled = _plain(made, torch.compile(loss, dynamic=True), batches, budget)
        found[f"torch.compile(dynamic=True), activation_memory_budget={budget:g}"] = compiled
    return found


def _dynamic(made: Recipe, batches: Sequence[Batch], limit: int | None) -> Contender:
    """One program for each of at most 8 buckets."""
    widths = [b.tokens.shape[1] for b in batches]
    rungs = xf.buckets([*widths, CAP], n=8)
    used = {min(r for r in rungs if r >= w) for w in widths}
    step = train.dynamic_step(made, CAP, rungs, limit)
    state = train.init(made)

    def run(batch: Batch) -> Tensor:
        nonlocal state
        state, metrics = step(state, batch, None)
        return xf.device_get(metrics.loss)

    return Contender(run, batches, _targets(batches), lambda: len(used))


def _static(made: Recipe, batches: Sequence[Batch]) -> Contender:
    return _jitted(made, _wide(batches)[:2], _targets(batches))


def _jitted(made: Recipe, batches: Sequence[Batch], targets: float) -> Contender:
    """A program for each shape."""
    state = train.init(made)

    def run(batch: Batch) -> Tensor:
        nonlocal state
        state, metrics = train.train_step(state, batch, recipe=made)
        return xf.device_get(metrics.loss)

    shapes = {b.tokens.shape for b in batches}
    return Contender(run, batches, targets, lambda: len(shapes))


def _plain(
    made: Recipe, loss: Callable[..., Tensor], batches: Sequence[Batch], budget: float = 1.0
) -> Contender:
    """Plain torch, at the exact shapes."""
    inner = plain_step(made, xf.device_get(model.init(made.model)), loss)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]

    def run(batch: Batch) -> Tensor:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            return inner(batch.tokens.long(), batch.targets.long(), None)

    def programs() -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"] - before

    return Contender(run, batches, _targets(batches), programs)


def _wide(batches: Sequence[Batch]) -> list[Batch]:
    return [setting.widened(b, CAP) for b in batches]


def _targets(batches: Sequence[Batch]) -> float:
    return statistics.mean(int((b.targets != model.IGNORE).sum()) for b in batches)


def _compare(contenders: dict[str, Contender], title: str) -> None:
    """Print the rate of each, and the ratio of the first to it."""
    print(f"{title}\n")
    print("| | targets per CPU-second | dynamic / this | programs | compilation, CPU-s |")
    print("|---|---|---|---|---|", flush=True)
    costs: dict[str, list[float]] = {}
    compiled: dict[str, int] = {}
    for name, c in contenders.items():
        before = c.programs()
        costs[name] = [_cost(c)]
        compiled[name] = c.programs() - before
    for _ in range(ROUNDS):
        for name, c in contenders.items():
            costs[name].append(_cost(c))
    first = 0.0
    for name, (begin, *rounds) in costs.items():
        c = contenders[name]
        each = statistics.median(rounds)
        rate = c.targets * len(c.batches) / each
        first = first or rate
        more = f"{compiled[name] or c.programs()} | {max(0.0, begin - each):.0f}"
        print(f"| {name} | {rate:,.0f} | {first / rate:.2f} | {more} |", flush=True)
    print(flush=True)


def _cost(c: Contender) -> float:
    """The CPU time of all its batches."""
    start = time.process_time()
    for batch in c.batches:
        c.step(batch)
    return time.process_time() - start


if __name__ == "__main__":
    measure(sys.argv[1])
