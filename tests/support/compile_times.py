"""The time that tracing and compiling each operation takes, of 10,000 elements.

    python -m tests.support.compile_times cumsum logcumsumexp

A sample of torch's database is stretched: one of its sizes, in all of its tensors, becomes so large
that the first tensor has about 10,000 elements. Time is that of the CPU, in all threads, of the
value and the gradient in one program; `LIMIT` seconds are too much. The last line counts.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

import xfunc as xf
from benchmarks.operations import entries
from benchmarks.operations.cases import Case, arrays, as_real, is_smooth, samples_of

Tensor = torch.Tensor
ELEMENTS = 10_000
LIMIT = 2.0  # seconds
RESULTS = 50  # at most: XLA's compiler for the CPU takes 20 ms for each, as it does for JAX
TRIED = 20  # samples of an operation
BY_LAPACK = frozenset(
    "linalg.eig linalg.eigh linalg.eigvals linalg.eigvalsh linalg.svd linalg.svdvals svd".split()
)
"""Called while a program runs, for a time of its own; XLA compiles nothing of them."""


def _stretched(case: Case, size: int) -> list[Tensor] | None:
    """The tensors of a case with more elements along all dimensions of a size."""
    first = case.tensors[0]
    times = sum(n == size for n in first.shape)
    if size < 2 or not times:
        return None
    rest = first.numel() / size**times
    new = max(size, math.ceil((ELEMENTS / rest) ** (1 / times)))
    found = []
    for t in case.tensors:
        for dim, n in enumerate(t.shape):
            if n == size:
                t = t.index_select(dim, torch.arange(new) % n)
        if t.numel() > 100 * ELEMENTS:
            return None
        found.append(t)
    return found


def stretched(op: Any) -> Iterator[tuple[Case, list[Tensor]]]:
    """The samples of an operation, larger, those of the fewest dimensions first."""
    dtype = torch.float32 if torch.float32 in op.dtypes else next(iter(sorted(op.dtypes, key=str)))
    cases = [Case(op, sample) for sample in samples_of(op, dtype, TRIED)]
    for case in sorted(cases, key=lambda c: c.tensors[0].ndim if c.tensors else 0):
        for size in sorted({*case.tensors[0].shape}) if case.tensors else ():
            tensors = _stretched(case, size)
            if tensors is not None:
                yield case, tensors


def seconds(case: Case, tensors: list[Tensor]) -> float:
    """The time of the value and the gradient."""

    def value(*tensors: Tensor) -> list[Tensor]:
        return arrays(case(*tensors))

    def both(*tensors: Tensor) -> object:
        def loss(*watched: Tensor) -> Tensor:
            full = list(tensors)
            for k, x in zip(case.watched, watched, strict=True):
                full[k] = x
            return torch.stack([as_real(a).sum() for a in value(*full) if is_smooth(a)]).sum()

        argnums = tuple(range(len(case.watched)))
        return value(*tensors), xf.grad(loss, argnums=argnums)(*(tensors[k] for k in case.watched))

    start = time.process_time()
    xf.jit(both if case.watched else value).lower(*tensors).compile()
    return time.process_time() - start


def examine(name: str, op: Any) -> tuple[str, float]:
    """The status of an operation, and the time of the first sample that can be stretched."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for case, tensors in stretched(op):
                try:
                    if len(arrays(case(*tensors))) > RESULTS:
                        continue
                    found = seconds(case, tensors)
                    if found > LIMIT:  # What a process loads once is not the operation's.
                        xf.clear_caches()
                        found = min(found, seconds(case, tensors))
                except Exception:  # Sizes that do not fit each other, or an operation refused.
                    continue
                return ("wrong" if found > LIMIT else "right"), found
        except Exception:
            return "skipped", 0.0
    return "skipped", 0.0


def main(names: list[str]) -> int:
    """Print the time of each operation; the exit status."""
    counts: Counter[str] = Counter()
    for name, op in entries().items():
        if name not in BY_LAPACK and (not names or name in names):
            status, found = examine(name, op)
            counts[status] += 1
            mark = "# program " if status == "wrong" else ""  # as `tests.sweep` reads it
            print(f"{mark}{name}: {status} {found:.2f} s", flush=True)
            xf.clear_caches()
    print(dict(counts))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    sys.exit(main(parser.parse_args().names))
