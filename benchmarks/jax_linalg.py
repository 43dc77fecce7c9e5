"""Times of JAX for the factorisations of `benchmarks.linalg`, as JSON.

Run with a Python that has JAX: ``python -m benchmarks.jax_linalg SIZE ROUNDS``.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl

ROUTINES: dict[str, Any] = {
    "svd": lambda a: jnp.linalg.svd(a, full_matrices=False),
    "eigh": jnp.linalg.eigh,
    "eig": jnp.linalg.eig,
    "cholesky": jnp.linalg.cholesky,
    "qr": jnp.linalg.qr,
    "solve": lambda a: jnp.linalg.solve(a, a[:, :3]),
    "inv": jnp.linalg.inv,
    "det": jnp.linalg.det,
    "solve_triangular": lambda a: jsl.solve_triangular(a, a, lower=True),
}


def main(size: int, rounds: int) -> None:
    """Print the seconds of each routine's first call, and of the fastest of the others."""
    x = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5
    a = jax.block_until_ready(x @ x.T + jnp.eye(size) / 2)
    result = {}
    for name, f in ROUTINES.items():
        run, found = jax.jit(f), []
        for _ in range(1 + rounds):
            start = time.perf_counter()
            jax.block_until_ready(run(a))
            found.append(time.perf_counter() - start)
        result[name] = found[0], min(found[1:])
    print(json.dumps(result))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
