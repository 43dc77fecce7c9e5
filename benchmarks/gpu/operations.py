"""Operations: exported programs on the GPU against eager torch on the same GPU.

The samples are those of `benchmarks.operations`. Both machines draw them by the same seed; where
their releases of torch draw others, the operation is left out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import lzma
import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import xfunc as xf
from benchmarks.operations import page, run
from benchmarks.operations.cases import DTYPES, Case, entries, full_name, samples_of
from benchmarks.operations.compare import WITHOUT_DERIVATIVE, compare
from benchmarks.operations.run import REFUSALS, Finding, Unit
from benchmarks.operations.transforms import TRANSFORMS

UNDER = ("jit", "vmap", "grad", "jvp")
OF = ("float32", "bfloat16", "float16", "complex64", "int64", "bool")
FILE = "operations.xz"
WORKERS = 12


@dataclasses.dataclass
class Program:
    """A sample of an operation under some transforms, as an exported function of its tensors.

    Attributes:
        sample: what it was made for.
        made: the file; the reason, if there is none.
        refused: whether that is a refusal by name.
    """

    name: str
    dtype: str
    transforms: tuple[str, ...]
    sample: str
    made: bytes | str
    refused: bool = False


def export(folder: Path, only: Sequence[str] = ()) -> None:
    """Export the programs of all operations."""
    warnings.simplefilter("ignore")
    database = entries()
    found: list[Program] = []
    for k, unit in enumerate(run.units(OF, UNDER, only or database, 1)):
        found += _exported(database[unit.name], unit)
        if k % 20 == 19:
            xf.clear_caches()
            print(f"\r{len(found)} programs", end="", flush=True)
    (folder / FILE).write_bytes(lzma.compress(pickle.dumps(found), preset=2))
    print(f"\r{len(found)} programs, {(folder / FILE).stat().st_size / 2**20:.1f} MiB")


def _exported(op: Any, unit: Unit) -> Iterator[Program]:
    for sample in samples_of(op, DTYPES[unit.dtype], unit.samples):
        try:
            case = Case(op, sample)
        except Exception:  # Not an array: sparse, for one.
            continue
        given = {t: g for t in unit.transforms if (g := _given(op, case, t)) is not None}
        yield from _programs(unit, case, given)


def _programs(unit: Unit, case: Case, given: dict[str, Any]) -> Iterator[Program]:
    """One for all transforms; one for each, if that fails."""
    if not given:
        return

    def program(given: dict[str, Any]) -> dict[str, Any]:
        found = {t: TRANSFORMS[t].ours(case, given[t]) for t in given}
        return {t: tuple(x) if isinstance(x, tuple) else x for t, x in found.items()}

    made = Program(unit.name, unit.dtype, tuple(given), _digest(case), b"")
    try:
        made.made = xf.export.serialize(xf.jit(program).lower(given))
    except Exception as error:
        if len(given) > 1:
            for t, one in given.items():
                yield from _programs(unit, case, {t: one})
            return
        made.made = f"{type(error).__name__}: {error}"
        made.refused = isinstance(error, REFUSALS)
    yield made


def _given(op: Any, case: Case, transform: str) -> Any:
    """The inputs under a transform; None: torch cannot run it."""
    if TRANSFORMS[transform].differentiates and full_name(op) in WITHOUT_DERIVATIVE:
        return None
    try:
        given = run.inputs_of(case, transform)
        TRANSFORMS[transform].theirs(case, given)
    except Exception:
        return None
    return given


def _digest(case: Case) -> str:
    """What a sample is made of."""
    parts = hashlib.sha256()
    for x in case.leaves:
        if isinstance(x, torch.Tensor):
            x = xf.device_get(x.detach().resolve_conj().resolve_neg())
            x = (x.dtype, *x.shape, *x.flatten().tolist())
        parts.update(repr(x).encode())
    return parts.hexdigest()


def check(folder: Path, only: Sequence[str] = ()) -> None:
    """Run the programs; print the table, and keep each finding in the folder or in $OUT."""
    units = [
        Unit(name, dtype, tuple(t for p in some for t in p.transforms), 1)
        for (name, dtype), some in read(folder).items()
        if not only or name in only
    ]
    findings = Path(os.environ.get("OUT") or folder, "operations.jsonl")
    parts = [units[k::WORKERS] for k in range(WORKERS)]
    command = [sys.executable, "-m", "benchmarks.gpu.operations", str(folder)]
    flags = "--xla_gpu_autotune_level=0 " + os.environ.get("XLA_FLAGS", "")
    env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_FLAGS": flags}
    with ThreadPoolExecutor(WORKERS) as pool:
        each = pool.map(lambda part: run.measure(part, findings, command, env), parts)
        found = [f for part in each for f in part]
    print(page.table(found))


def read(folder: Path) -> dict[tuple[str, str], list[Program]]:
    """The exported programs, by operation and dtype."""
    kept: dict[tuple[str, str], list[Program]] = {}
    for p in pickle.loads(lzma.decompress((folder / FILE).read_bytes())):
        kept.setdefault((p.name, p.dtype), []).append(p)
    return kept


def examine(kept: Sequence[Program], op: Any, unit: Unit) -> list[Finding]:
    """Run the programs of an operation in a dtype."""
    why = "this release of torch draws another sample"
    found = {t: Finding(full_name(op), unit.dtype, t, detail=why) for t in unit.transforms}
    [sample] = samples_of(op, DTYPES[unit.dtype], 1)
    case = Case(op, sample)
    for program in kept:
        fitting = [t for t in program.transforms if t in unit.transforms]
        for t, status, detail in _outcomes(program, op, sample, case, fitting):
            found[t].add(status, detail)
    return list(found.values())


def _outcomes(
    program: Program, op: Any, sample: Any, case: Case, transforms: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    if _digest(case) != program.sample:
        return
    if isinstance(program.made, str):
        status = "refused" if program.refused else "error"
        yield from ((t, status, str(program.made)) for t in transforms)
        return
    given = {t: run.inputs_of(case, t) for t in program.transforms}
    try:
        found: Any = xf.device_get(xf.export.deserialize(program.made)(given))
    except Exception as error:
        yield from ((t, "error", f"{type(error).__name__}: {error}"[:1500]) for t in transforms)
        return
    for t in transforms:
        yield t, *_judged(op, sample, case, t, found[t])


def _judged(op: Any, sample: Any, case: Case, transform: str, found: Any) -> tuple[str, str]:
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


def main() -> None:
    """The process that runs programs: see `benchmarks.operations.run.work`."""
    kept = read(Path(sys.argv[1]))
    run.work(lambda op, unit: examine(kept[unit.name, unit.dtype], op, unit))


if __name__ == "__main__":
    main()
