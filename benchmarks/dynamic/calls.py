"""Calls with sizes that have not been seen: no trace, no compilation, and little time."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

import xfunc as xf
from xfunc.stages.entry import Entry

SHAPES, LARGEST, AGAIN = 1000, 1024, 300


def step(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A small loss."""
    return torch.tanh(x @ w).square().mean()


class Clock:
    """Seconds of calls, and the part of them in which the program that they chose is launched."""

    def __init__(self) -> None:
        self._run, self.inside = Entry.run, 0.0

    def __enter__(self) -> Clock:
        def run(entry: Entry, leaves: Any, held: Any) -> Any:
            start = time.perf_counter()
            found = self._run(entry, leaves, held)
            self.inside += time.perf_counter() - start
            return found

        Entry.run = run  # pyright: ignore[reportAttributeAccessIssue]
        return self

    def __exit__(self, *error: object) -> None:
        Entry.run = self._run

    def before_launch(self, f: Any, *args: torch.Tensor) -> float:
        """The seconds of a call, without the launch."""
        self.inside, start = 0.0, time.perf_counter()
        result = f(*args)
        found = time.perf_counter() - start - self.inside
        xf.block_until_ready(result)
        return found


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
        with Clock() as clock:
            unseen = [clock.before_launch(jitted, w, r) for r in rows]
            seen = [clock.before_launch(jitted, w, x) for _ in range(AGAIN)]
        after = jitted.cache_info()
        calls = {
            f: min(_until_done(f, w, x) for _ in range(AGAIN)) for f in (jitted, plain, jitted)
        }
        counts = f"{after.traces - before.traces}, {after.compiles - before.compiles}"
        more = calls[jitted] - calls[plain]
        print(f"| {name}: traces, compilations in {len(rows)} unseen shapes | {counts} |")
        print(f"| {name}: choice for an unseen shape, padding included | {_median(unseen)} |")
        print(f"| {name}: choice for a seen shape | {_median(seen)} |")
        print(f"| {name}: a call, more than one of a fixed shape | {more * 1e6:.0f} us |")


def _until_done(f: Any, *args: torch.Tensor) -> float:
    start = time.perf_counter()
    xf.block_until_ready(f(*args))
    return time.perf_counter() - start


def _median(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e6:.0f} us"
