"""Torch's database of operations on the GPU, beside eager torch there.

A sample of each runs with its derivatives, as `benchmarks.operations` does on the CPU, in processes
of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import xfunc as xf
from benchmarks.operations import entries, page, run
from benchmarks.operations.cases import DTYPES, Case, full_name, samples_of
from benchmarks.operations.compare import WITHOUT_DERIVATIVE, compare
from benchmarks.operations.run import Finding, Unit
from benchmarks.operations.transforms import TRANSFORMS

UNDER = ("jit", "vmap", "grad", "jvp")
OF = ("float32", "bfloat16", "float16", "complex64", "int64", "bool")
SMALL = ("maximum", "nonzero")
WORKERS = 12


def check(small: bool, only: Sequence[str] = ()) -> None:
    """Run them; print the table, and keep each finding in $OUT, or in build."""
    names = only or (SMALL if small else entries())
    units = list(run.units(OF[:1] if small else OF, UNDER, names, 1))
    findings = Path(os.environ.get("OUT", "build"), "operations.jsonl")
    findings.parent.mkdir(exist_ok=True)
    workers = min(WORKERS, os.cpu_count() or 1, len(units))
    parts = [units[k::workers] for k in range(workers)]
    command = [sys.executable, "-m", "benchmarks.gpu.operations"]
    flags = "--xla_gpu_autotune_level=0 " + os.environ.get("XLA_FLAGS", "")
    env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": flags}
    with ThreadPoolExecutor(workers) as pool:
        each = pool.map(lambda part: run.measure(part, findings, command, env), parts)
        found = [f for part in each for f in part]
    print(page.table(found))


def examine(op: Any, unit: Unit) -> list[Finding]:
    """Run a sample of an operation."""
    found = {t: Finding(full_name(op), unit.dtype, t) for t in unit.transforms}
    for sample in samples_of(op, DTYPES[unit.dtype], 1):
        try:
            case = Case(op, sample)
        except Exception:  # Not an array: sparse, for one.
            continue
        able = tuple(t for t in unit.transforms if _is_able(op, case, t))
        for t, (status, result) in (run.results(case, able) if able else {}).items():
            if status == "right":
                status, result = judged(op, sample, case, t, result)
            found[t].add(status, result)
    return list(found.values())


def _is_able(op: Any, case: Case, transform: str) -> bool:
    """Whether torch can do it on the CPU."""
    if TRANSFORMS[transform].differentiates and full_name(op) in WITHOUT_DERIVATIVE:
        return False
    try:
        TRANSFORMS[transform].theirs(case, run.inputs_of(case, transform))
    except Exception:
        return False
    return True


def judged(op: Any, sample: Any, case: Case, transform: str, found: Any) -> tuple[str, str]:
    """A status and its reason: next to eager torch on the GPU, or on the CPU where they differ."""
    derivative = TRANSFORMS[transform].differentiates
    problems = []
    for device in ("cuda", "cpu"):
        given = run.inputs_of(case, transform)
        try:
            there = xf.tree.map(lambda x: x.to(device), given)  # noqa: B023
            theirs = xf.tree.map(_on_cpu, TRANSFORMS[transform].theirs(case, there))
        except Exception as error:
            problems.append(f"{device}: {type(error).__name__}: {error}"[:300])
            continue
        problem = compare(full_name(op), found, theirs, derivative=derivative)
        if problem is not None:
            more = run.exact(op, sample, transform), run.again(case, transform, theirs)
            problem = compare(full_name(op), found, theirs, *more, derivative)
        if problem is None:
            return "right", "; ".join(problems)
        problems.append(f"{device}: {problem}")
    return "wrong", "; ".join(problems)


def _on_cpu(x: Any) -> Any:
    return x.cpu() if isinstance(x, torch.Tensor) else x


if __name__ == "__main__":
    run.work(examine)
