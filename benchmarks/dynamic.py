"""Memory over all sizes at once: how much is decided and exact, how fast plans and buckets are."""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.plan import Plan
from xfunc.hlo import Module
from xfunc.hlo.estimate.liveness import peak
from xfunc.symbolic.box import Box, Range
from xfunc.symbolic.envelope import SymbolicPeak, prepared
from xfunc.symbolic.polynomial import value

CONFIG = model.Config(512, hidden=128, intermediate=352, layers=4, heads=4, kv_heads=2)
RECIPE = train.Recipe(CONFIG, steps=100, plan=Plan(attention="dense", loss_chunk=4096))
BOX = Box({"B": Range(1, 16), "S": Range(2, 1024)})


def step(env: Any) -> Module:
    """The train step of the Llama example at given sizes."""
    weights = model.shapes(CONFIG, torch.float32)
    state = xf.eval_shape(lambda params: train.start(RECIPE, params), weights)
    tokens: Any = xf.ShapeDtypeStruct((env["B"], env["S"]), torch.int64)
    return train.train_step.lower(state, model.Batch(tokens, tokens), recipe=RECIPE).module


def main() -> None:
    """Print the table."""
    draw = random.Random(0)
    samples = [{"B": draw.randint(1, 16), "S": draw.randint(2, 1024)} for _ in range(1000)]
    symbolic = prepared(step, BOX)
    sizes = [symbolic.shape(i).bytes for i in symbolic.module.entry.instructions]
    distinct = {s: sizes.count(s) for s in set(sizes)}
    decided = cross = total = wrong = 0
    for (p, n), (q, m) in itertools.combinations(distinct.items(), 2):
        total += n * m
        found = BOX.compare(p, q)
        cross += n * m * (found == "<>")
        if found in ("<=", ">="):
            decided += n * m
            low, high = (p, q) if found == "<=" else (q, p)
            wrong += sum(value(low, e) > value(high, e) for e in samples)
    same = sum(n * (n - 1) // 2 for n in distinct.values())
    print("## dynamic: the train step of the Llama example, B to 16, S to 1024\n")
    print("| what | figure |\n|---|---|")
    part = (decided + same) / (total + same)
    print(f"| pairs of buffer sizes ordered | {part:.1%} of {total + same}, {wrong} wrong |")
    print(f"| pairs shown to cross in the box | {cross / (total + same):.1%} |")
    known = SymbolicPeak(symbolic)
    picked = samples[:8]
    equal = sum(known.at(e) == peak(step(e)).bytes for e in picked)
    print(f"| symbolic peak equals the concrete one | {equal} of {len(picked)} |")
    start = time.perf_counter()
    for e in picked:
        known.at(e)
    each = (time.perf_counter() - start) / len(picked)
    print(f"| peak at a size in a part that is known | {each * 1e6:.0f} us |")
    lengths = [min(1024, max(1, round(draw.lognormvariate(4.564, 0.72)))) for _ in range(20000)]
    start = time.perf_counter()
    ladder = xf.buckets(lengths, n=8)
    took = time.perf_counter() - start
    padded = sum(min(r for r in ladder if r >= s) for s in lengths)
    print(f"| padding in the best 8 buckets | {1 - sum(lengths) / padded:.1%}, {took:.2f} s |")
