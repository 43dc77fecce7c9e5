"""Calls with sizes that have not been seen: no trace, no compilation, and little time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

import xfunc as xf

SHAPES, LARGEST = 1000, 1024


def step(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A small loss."""
    return torch.tanh(x @ w).square().mean()


def main() -> None:
    """Print the lines."""
    dim = xf.Dim("S", max=LARGEST)
    limits = {"dynamic": None, "dynamic, with a memory limit": 2**30}
    w = xf.device_put(torch.randn(8, 8))
    x = xf.device_put(torch.randn(LARGEST, 8))
    plain = xf.jit(step)
    print("| what | figure |\n|---|---|")
    for name, limit in limits.items():
        jitted = xf.jit(
            step,
            dynamic_shapes=(None, (dim, None)),
            buckets=[64, 256, LARGEST],
            memory_limit=limit,
        )
        for n in (3, 65, LARGEST):
            jitted(w, torch.randn(n, 8))
        rows = [torch.randn(n, 8) for n in range(1, SHAPES + 1) if n not in (3, 65)]
        before = jitted.cache_info()
        found = [(_seconds(jitted, w, r), _seconds(jitted, w, r)) for r in rows]
        after = jitted.cache_info()
        more = statistics.median(first - again for first, again in found)
        own = _fastest(jitted, w, x) - _fastest(plain, w, x)
        counts = f"{after.traces - before.traces}, {after.compiles - before.compiles}"
        print(f"| {name}: traces, compilations in {len(rows)} unseen shapes | {counts} |")
        print(f"| {name}: an unseen shape, more than a seen one | {max(more, 0) * 1e6:.0f} us |")
        print(f"| {name}: a call, more than one of a fixed shape | {own * 1e6:.0f} us |")


def _seconds(f: Callable[..., torch.Tensor], *args: torch.Tensor) -> float:
    start = time.perf_counter()
    result = f(*args)
    found = time.perf_counter() - start
    xf.block_until_ready(result)
    return found


def _fastest(f: Callable[..., torch.Tensor], *args: torch.Tensor) -> float:
    return min(_seconds(f, *args) for _ in range(300))
