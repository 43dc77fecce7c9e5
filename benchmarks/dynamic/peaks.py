"""Memory over all sizes at once: how much of it is decided, and whether it is exact."""

from __future__ import annotations

import itertools
import random
import time

import xfunc as xf
from benchmarks.dynamic.setting import CAP, lengths, module
from xfunc.hlo.estimate.liveness import peak
from xfunc.symbolic.box import Box, Range
from xfunc.symbolic.envelope import SymbolicPeak, prepared
from xfunc.symbolic.polynomial import Env, value

BOX = Box({"B": Range(1, 16), "S": Range(2, CAP)})


def samples(n: int) -> list[Env]:
    """Random sizes in the box."""
    draw = random.Random(0)
    return [{"B": draw.randint(1, 16), "S": draw.randint(2, CAP)} for _ in range(n)]


def main() -> None:
    """Print the lines."""
    symbolic = prepared(module, BOX)
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
            wrong += sum(value(low, e) > value(high, e) for e in samples(1000))
    same = sum(n * (n - 1) // 2 for n in distinct.values())
    print(f"The train step of the Llama example, B to 16, S to {CAP}.\n")
    print("| what | figure |\n|---|---|")
    part = (decided + same) / (total + same)
    print(f"| pairs of buffer sizes ordered | {part:.1%} of {total + same}, {wrong} wrong |")
    print(f"| pairs shown to cross in the box | {cross / (total + same):.1%} |")
    known = SymbolicPeak(symbolic)
    picked = samples(8)
    equal = sum(known.at(e) == peak(module(e)).bytes for e in picked)
    print(f"| symbolic peak equals the concrete one | {equal} of {len(picked)} |")
    start = time.perf_counter()
    for e in picked:
        known.at(e)
    each = (time.perf_counter() - start) / len(picked)
    print(f"| peak at a size in a part that is known | {each * 1e6:.0f} us |")
    drawn = lengths(20000)
    start = time.perf_counter()
    ladder = xf.buckets(drawn, n=8)
    took = time.perf_counter() - start
    padded = sum(min(r for r in ladder if r >= s) for s in drawn)
    print(f"| padding in the best 8 buckets | {1 - sum(drawn) / padded:.1%}, {took:.2f} s |")
