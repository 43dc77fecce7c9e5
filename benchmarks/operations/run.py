"""Examining operations, in a process that may die over them."""

from __future__ import annotations

import dataclasses
import json
import queue
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import xfunc as xf

from .cases import DTYPES, Case, arrays, entries, full_name, is_smooth, samples_of
from .compare import WITHOUT_DERIVATIVE, compare
from .transforms import TRANSFORMS, forward_inputs, inputs

ROOT = Path(__file__).parent.parent.parent
SECONDS = 240.0  # without a result, before an operation counts as hung

# The worst of an operation's samples is its status: in this order.
# Absent: torch itself cannot run the samples on arrays of the CPU, or not differentiate them.
STATUSES = ("crash", "wrong", "error", "refused", "right", "absent")
REFUSALS = (xf.errors.UnsupportedOpError, xf.errors.PurityError, xf.errors.ConcretizationError)


@dataclasses.dataclass(frozen=True)
class Unit:
    """What is examined at once: one operation in one dtype, under some transforms."""

    name: str
    dtype: str
    transforms: tuple[str, ...]
    samples: int

    def alone(self) -> list[Unit]:
        """The same, one transform after the other."""
        return [dataclasses.replace(self, transforms=(t,)) for t in self.transforms]


@dataclasses.dataclass
class Finding:
    """What became of an operation, in a dtype and under a transform.

    Attributes:
        status: see `STATUSES`.
        samples: how many ran.
        right: how many were right.
        detail: of the worst sample: the error, or the difference.
    """

    name: str
    dtype: str
    transform: str
    status: str = "absent"
    samples: int = 0
    right: int = 0
    detail: str = "torch cannot run it on arrays of the CPU"

    def add(self, status: str, detail: str) -> None:
        """Count one more sample."""
        self.samples += status != "absent"
        self.right += status == "right"
        if STATUSES.index(status) < STATUSES.index(self.status):
            self.status, self.detail = status, detail


def units(
    dtypes: Iterable[str], transforms: Iterable[str], names: Iterable[str], samples: int
) -> Iterator[Unit]:
    """All that there is to examine of this choice."""
    database, transforms = entries(), tuple(transforms)
    for name in names:
        for dtype in dtypes:
            smooth = DTYPES[dtype].is_floating_point or DTYPES[dtype].is_complex
            fitting = tuple(t for t in transforms if smooth or not TRANSFORMS[t].differentiates)
            if fitting and DTYPES[dtype] in database[name].dtypes:
                yield Unit(name, dtype, fitting, samples)


def examine(op: Any, unit: Unit) -> list[Finding]:
    """Run an entry's samples."""
    found = {t: Finding(full_name(op), unit.dtype, t) for t in unit.transforms}
    for sample in samples_of(op, DTYPES[unit.dtype], unit.samples):
        for transform, status, detail in _outcomes(op, sample, unit.transforms):
            found[transform].add(status, detail)
    return list(found.values())


def _outcomes(op: Any, sample: Any, transforms: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    try:
        case = Case(op, sample)
    except Exception as error:  # Not an array: sparse, for one.
        yield from ((t, "absent", f"{type(error).__name__}: {error}") for t in transforms)
        return
    expected: dict[str, Any] = {}
    for transform in transforms:
        if TRANSFORMS[transform].differentiates and full_name(op) in WITHOUT_DERIVATIVE:
            yield transform, "absent", "torch has no derivative to compare with"
            continue
        try:
            given = inputs_of(case, transform)
            expected[transform] = TRANSFORMS[transform].theirs(case, given)
        except Exception as error:
            yield transform, "absent", f"{type(error).__name__}: {error}"
    found = results(case, tuple(expected))
    for transform, theirs in expected.items():
        status, result = found[transform]
        if status == "right":
            derivative = TRANSFORMS[transform].differentiates
            problem = compare(full_name(op), result, theirs, derivative=derivative)
            if problem is not None:
                more = exact(op, sample, transform), again(case, transform, theirs)
                problem = compare(full_name(op), result, theirs, *more, derivative)
            status, result = ("right", "") if problem is None else ("wrong", problem)
        yield transform, status, result


def inputs_of(case: Case, transform: str) -> dict[str, Any]:
    """What a transform works on."""
    torch.manual_seed(0)
    return inputs(case) if TRANSFORMS[transform].differentiates else forward_inputs(case)


def results(case: Case, transforms: tuple[str, ...]) -> dict[str, tuple[str, Any]]:
    """The status under each transform, and the result or the error.

    All transforms are one program, which is compiled once; each is one of its own if that fails.
    """

    def program(given: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return {t: TRANSFORMS[t].ours(case, given[t]) for t in transforms}

    given = {t: inputs_of(case, t) for t in transforms}
    try:
        found: Any = xf.device_get(xf.jit(program)(given))
    except Exception as error:
        if len(transforms) != 1:
            return {t: s for one in transforms for t, s in results(case, (one,)).items()}
        kind, text = type(error).__name__, str(error)[:1500]
        return {
            transforms[0]: (
                "refused" if isinstance(error, REFUSALS) else "error",
                f"{kind}: {text}",
            )
        }
    return {t: ("right", found[t]) for t in transforms}


def exact(op: Any, sample: Any, transform: str) -> Any:
    """What eager torch finds in float64 for the same inputs, where it can."""
    try:
        wide = sample.transform(lambda x: _widened(x) if isinstance(x, torch.Tensor) else x)
        case = Case(op, wide)
        return TRANSFORMS[transform].theirs(case, inputs_of(case, transform))
    except Exception:
        return None


def again(case: Case, transform: str, theirs: Any) -> Any:
    """What eager torch finds in another way, where it has one."""
    other = TRANSFORMS[transform].otherwise
    if other is None:
        return None
    try:
        made = other(case, inputs_of(case, transform))
    except Exception:
        return None
    # Of some operations, torch takes the derivative in forward mode for zero.
    known = any(a.any() for a in arrays(made))
    return made if known or not all(a.isfinite().all() for a in arrays(theirs)) else None


_WIDE = {torch.complex64: torch.complex128, torch.complex128: torch.complex128}


def _widened(x: torch.Tensor) -> torch.Tensor:
    if not is_smooth(x):
        return x
    return x.detach().to(_WIDE.get(x.dtype, torch.float64)).requires_grad_(x.requires_grad)


def work(examine: Callable[[Any, Unit], list[Finding]] = examine) -> None:
    """The process that runs samples: units on its input, lists of findings on its output."""
    warnings.simplefilter("ignore")
    output = sys.stdout
    sys.stdout = sys.stderr
    database = entries()
    for k, line in enumerate(sys.stdin):
        given = json.loads(line)
        unit = Unit(**{**given, "transforms": tuple(given["transforms"])})
        try:
            found = examine(database[unit.name], unit)
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
            found = [
                Finding(unit.name, unit.dtype, t, "error", detail=detail) for t in unit.transforms
            ]
        print(json.dumps([dataclasses.asdict(f) for f in found]), file=output, flush=True)
        if k % 20 == 19:
            xf.clear_caches()


_WORK = (sys.executable, "-m", "benchmarks.operations")


class Worker:
    """A process that runs `work`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None) -> None:
        self._process = subprocess.Popen(
            command, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL, text=True, cwd=ROOT, env=env
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def examine(self, unit: Unit) -> list[Finding] | str:
        """Have a unit examined, or say how the process ended over it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(dataclasses.asdict(unit)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return f"exit status {self._process.wait()}"
        try:
            line = self._lines.get(timeout=SECONDS)
        except queue.Empty:
            self.close()
            return f"no result after {SECONDS:g} s"
        if line:
            return [Finding(**f) for f in json.loads(line)]
        return f"exit status {self._process.wait()}"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(
    chosen: Iterable[Unit],
    record: Path | None = None,
    command: Sequence[str] = _WORK,
    env: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Examine units, in a process that may die over them; `command` starts it."""
    found: list[Finding] = []
    waiting = list(chosen)[::-1]
    worker: Worker | None = None
    while waiting:
        unit = waiting.pop()
        worker = worker or Worker(command, env)
        result = worker.examine(unit)
        if isinstance(result, str):
            worker.close()
            worker = None
            if len(unit.transforms) != 1:
                waiting += unit.alone()[::-1]
                continue
            result = [Finding(unit.name, unit.dtype, unit.transforms[0], "crash", detail=result)]
        found += result
        if record is not None:
            with record.open("a") as file:
                file.writelines(json.dumps(dataclasses.asdict(f)) + "\n" for f in result)
    if worker is not None:
        worker.close()
    return found
