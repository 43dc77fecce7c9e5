"""Memory over all sizes at once: how much of it is decided, and whether it is exact."""

from __future__ import annotations

import itertools
import random
import time

import xfunc as xf
from benchmarks.dynamic.setting import CAP, lengths, module
from xfunc.hlo.estimate import liveness
from xfunc.hlo.estimate.liveness import peak
from xfunc.hlo.estimate.occupancy import held
from xfunc.symbolic.peak_bound import SymbolicPeak, prepared
from xfunc.symbolic.polynomial import Env, Size, value
from xfunc.symbolic.schedule import candidates, chosen, reordered, schedule
from xfunc.symbolic.shape_domain import Range, ShapeDomain

BOX = ShapeDomain({"B": Range(1, 16), "S": Range(2, CAP)})


def samples(n: int) -> list[Env]:
    """Random sizes in the box."""
    draw = random.Random(0)
    return [{"B": draw.randint(1, 16), "S": draw.randint(2, CAP)} for _ in range(n)]


def main() -> None:
    """Print the lines."""
    symbolic = prepared(module, BOX)
    sizes = [symbolic.shape(i).bytes for i in symbolic.module.entry.instructions]
    distinct = {s: sizes.count(s) for s in set(sizes)}
    sampled = samples(1000)
    decided = cross = total = wrong = 0
    for (p, n), (q, m) in itertools.combinations(distinct.items(), 2):
        total += n * m
        found = BOX.compare(p, q)
        if found == "<>":
            cross += n * m
            wrong += not _cross(p, q)
        if found in ("<=", ">="):
            decided += n * m
            low, high = (p, q) if found == "<=" else (q, p)
            wrong += any(value(low, e) > value(high, e) for e in sampled)
    same = sum(n * (n - 1) // 2 for n in distinct.values())
    print(f"The train step of the Llama example, B to 16, S to {CAP}.\n")
    print("| what | figure |\n|---|---|")
    part = (decided + same) / (total + same)
    both = part + cross / (total + same)
    print(f"| pairs of buffer sizes ordered at all sizes | {part:.1%} of {total + same} |")
    print(f"| ordered, or proven to cross | {both:.1%}, {wrong} wrong at {len(sampled)} sizes |")
    known = SymbolicPeak(symbolic)
    picked = samples(8)
    equal = sum(known.at(e) == peak(module(e)).bytes for e in picked)
    print(f"| symbolic peak equals the concrete one | {equal} of {len(picked)} |")
    start = time.perf_counter()
    for e in picked:
        known.at(e)
    each = (time.perf_counter() - start) / len(picked)
    print(f"| peak at a size in a part that is known | {each * 1e6:.0f} us |")
    _print_schedule()
    drawn = lengths(20000)
    start = time.perf_counter()
    ladder = xf.buckets(drawn, n=8)
    took = time.perf_counter() - start
    padded = sum(min(r for r in ladder if r >= s) for s in drawn)
    print(f"| padding in the best 8 buckets | {1 - sum(drawn) / padded:.1%}, {took:.2f} s |")


def _cross(p: Size, q: Size) -> bool:
    """Whether each of two sizes is the larger somewhere: at a corner, or where they are sampled."""
    places = [*BOX.corners(), *samples(1000)]
    signs = {(value(p, e) > value(q, e)) - (value(p, e) < value(q, e)) for e in places}
    return {-1, 1} <= signs


def _print_schedule() -> None:
    """One order of the steps for the whole box, next to that of each size."""
    symbolic = prepared(lambda env: module(env, "everything"), BOX)
    start = time.perf_counter()
    found = schedule(symbolic)
    took = time.perf_counter() - start
    to_written, to_own = [], []
    for e in samples(8):
        here = found.peak.at(e)
        flat = liveness.prepared(module(e, "everything"))
        task = liveness.task_of(flat.entry)
        own = held(reordered(task, chosen([*candidates([task])], [task])), task)
        to_own.append(here / (own.bytes + sum(p.bytes for p in flat.entry.parameters)))
        to_written.append(here / found.as_written.at(e))
    low, high = min(to_written), max(to_written)
    print(f"| one order for all sizes: peak, of that as written | {low:.3f} to {high:.3f} |")
    print(f"| the same, of that in the order chosen for a size | {max(to_own):.3f} at most |")
    print(f"| finding it | {took:.1f} s, {len(found.positions)} steps |")
