"""The start of a process: seconds from there to the first result, `sin` of two numbers.

Each in its own process, of which the fastest counts.
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.peers import ROOT, environment_of, find_jax

ROUNDS = 5
XFUNC = "import torch, xfunc as xf; print(xf.jit(torch.sin)(torch.ones(2)).tolist())"
DISPATCHED = """
import torch

class Traced(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, f, types, args=(), kwargs=None):
        return args[0]

torch.sin(torch.Tensor._make_wrapper_subclass(Traced, (2,)))
"""
JAX = "import jax, jax.numpy as jnp; print(jax.jit(jnp.sin)(jnp.ones(2)).tolist())"


def main(jax_python: str | None, rounds: int = ROUNDS) -> None:
    """Print the table.

    Args:
        jax_python: see `find_jax`.
        rounds: processes of each kind.
    """
    cases = {
        "xfunc": (sys.executable, XFUNC),
        "torch alone: imported": (sys.executable, "import torch"),
        "torch alone: one operation on a class with __torch_dispatch__": (
            sys.executable,
            DISPATCHED,
        ),
        "torch and JAX: imported": (sys.executable, "import torch, jax"),
        "JAX": (find_jax(jax_python), JAX),
    }
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):  # in turns
        for name, (python, code) in cases.items():
            begin = time.perf_counter()
            subprocess.run(
                [python, "-c", code],
                env=environment_of(PYTHONDONTWRITEBYTECODE=""),
                cwd=ROOT,
                capture_output=True,
                check=True,
            )
            taken[name].append(time.perf_counter() - begin)
    ours = min(taken["xfunc"])
    print("## start: seconds from the start of a process to its first result\n")
    print("| | s | xfunc / this |")
    print("|---|---|---|")
    for name, times in taken.items():
        print(f"| {name} | {min(times):.2f} | {ours / min(times):.2f} |")
    print()
