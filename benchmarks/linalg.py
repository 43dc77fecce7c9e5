"""Matrix factorisations on the CPU, compared with JAX (in its own process) and eager torch.

For each, the first call (tracing and compiling, except in eager torch) and the fastest of the rest.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

import xfunc as xf
from benchmarks.peers import answer_of, find_jax
from benchmarks.timing import Row, table

SIZE, ROUNDS = 256, 40
ROUTINES: dict[str, Callable[[torch.Tensor], Any]] = {
    "svd": lambda a: torch.linalg.svd(a, full_matrices=False),
    "eigh": torch.linalg.eigh,
    "eig": torch.linalg.eig,
    "cholesky": torch.linalg.cholesky,
    "qr": torch.linalg.qr,
    "solve": lambda a: torch.linalg.solve(a, a[:, :3]),
    "inv": torch.linalg.inv,
    "det": torch.linalg.det,
    "solve_triangular": lambda a: torch.linalg.solve_triangular(a, a, upper=False),
}


def main(jax_python: str | None) -> None:
    """Print the tables.

    Args:
        jax_python: see `find_jax`.
    """
    x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0)) / SIZE**0.5
    a = x @ x.mT + torch.eye(SIZE) / 2
    there = xf.device_put(a)
    _run(xf.jit(torch.sin), there)  # what the process does once is not the first routine's
    ours = {k: times(functools.partial(_run, xf.jit(f), there)) for k, f in ROUTINES.items()}
    eager = {k: times(functools.partial(f, a)) for k, f in ROUTINES.items()}
    rows = [Row(f"eager torch, {k}", ours[k][1], eager[k][1], 1.5) for k in ROUTINES]
    given = str(SIZE), str(ROUNDS)
    jax = answer_of(find_jax(jax_python), "benchmarks.jax_linalg", *given)
    rows += [Row(f"JAX, {k}", ours[k][1], jax[k][1], 1.5) for k in ROUTINES]
    rows += [Row(f"JAX, {k}, first call", ours[k][0], jax[k][0], 1.5) for k in ROUTINES]
    print(table(f"linalg: matrices of {SIZE} x {SIZE}, float32", rows))


def _run(f: Callable[[torch.Tensor], Any], a: torch.Tensor) -> None:
    xf.block_until_ready(f(a))


def times(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the first call, and of the fastest of the others."""
    found = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found[0], min(found[1:])
