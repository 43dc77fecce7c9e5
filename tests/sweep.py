"""Everything that `make test` draws samples from, whole: for hours, in parts that can be named.

    python -m tests.sweep                          # all parts
    python -m tests.sweep operations programs      # two of them
    python -m tests.sweep --seed 7                 # other random programs and damages
    python -m tests.sweep --record FILE            # where results are added as JSON lines

A part is a list of chunks, each a command of its own, so that one that dies takes nothing along.
A later run with the same record, seed and revision goes on after the last chunk that has ended.
The last lines are a table of all results in the record; the exit status is 1 if any chunk failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
RECORD = ROOT / "build" / "sweep.jsonl"
PROGRAMS = 3000  # random programs against eager torch
DAMAGES = 20000  # damaged files and modules
AT_ONCE = 20  # operations of torch's database in a chunk


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a chunk.

    Attributes:
        counts: cases by status, of which `BAD` are failures.
        failures: one line for each.
    """

    part: str
    chunk: str
    seed: int
    revision: str
    seconds: float
    counts: dict[str, int]
    failures: list[str]


@dataclasses.dataclass(frozen=True)
class Part:
    """A named list of commands, and how to read what they print.

    Attributes:
        chunks: from a seed to commands (arguments of Python) by name.
        read: from what a command printed to counts and failures.
    """

    description: str
    chunks: Callable[[int], dict[str, list[str]]]
    read: Callable[[str], tuple[dict[str, int], list[str]]]


BAD = {"failed", "error", "wrong", "crash", "differs", "findings"}


def _suite(backend: str) -> Callable[[int], dict[str, list[str]]]:
    def chunks(seed: int) -> dict[str, list[str]]:
        options = ["-m", "pytest", "--tier=sweep", f"--backend={backend}", f"--seed={seed}", "-q"]
        return {name: [*options, f"tests/{name}"] for name in _folders()}

    return chunks


def _folders() -> Iterator[str]:
    """Folders with tests of their own; `llama/extras` needs libraries that are not installed."""
    for folder in sorted({file.parent for file in TESTS.rglob("test_*.py")}):
        name = folder.relative_to(TESTS).as_posix()
        if name != "llama/extras":
            yield name


def _operations(seed: int) -> dict[str, list[str]]:
    from benchmarks.operations import entries

    names = list(entries())
    groups = [names[k : k + AT_ONCE] for k in range(0, len(names), AT_ONCE)]
    options = ["-m", "benchmarks", "operations", "--samples", "1000", "--name"]
    return {f"{group[0]} to {group[-1]}": [*options, *group] for group in groups}


def _compile_times(seed: int) -> dict[str, list[str]]:
    from benchmarks.operations import entries

    names = list(entries())
    groups = [names[k : k + AT_ONCE] for k in range(0, len(names), AT_ONCE)]
    command = ["-m", "tests.support.compile_times"]
    return {f"{group[0]} to {group[-1]}": [*command, *group] for group in groups}


def _programs(seed: int) -> dict[str, list[str]]:
    options = ["-m", "tests.support.differential.eager", f"--seed={seed}", "--programs=100"]
    return {f"{k} to {k + 99}": [*options, f"--first={k}"] for k in range(0, PROGRAMS, 100)}


def _damages(seed: int) -> dict[str, list[str]]:
    command = ["-m", "tests.internals.hlo.mutations", str(DAMAGES // 10)]
    return {f"seed {seed * 10 + k}": [*command, str(seed * 10 + k)] for k in range(10)}


def read_pytest(text: str) -> tuple[dict[str, int], list[str]]:
    """Counts of pytest's closing line, and the names of failures in its summary."""
    closing = text.strip().splitlines()[-1] if text.strip() else ""
    kinds = r"(\d+) (passed|failed|error|skipped)"
    counts: dict[str, int] = {kind: int(n) for n, kind in re.findall(kinds, closing)}
    return counts, re.findall(r"^(?:FAILED|ERROR) (.+)$", text, re.MULTILINE)


def read_operations(text: str) -> tuple[dict[str, int], list[str]]:
    """The totals of a table of operations, and the findings above it."""
    total = re.search(r"^In all, (.*)\.$", text, re.MULTILINE)
    words = {"ends the process": "crash", "another error": "error"}
    counts = re.findall(r"(\d+) ([a-z ]+)", total[1] if total else "")
    failures = [line for line in text.splitlines() if line.startswith("{")]
    return {words.get(kind) or kind: int(n) for n, kind in counts}, failures


def read_programs(text: str) -> tuple[dict[str, int], list[str]]:
    """The counts of the last line, and the programs that failed, in their smallest form."""
    last = text.strip().splitlines()[-1] if text.strip() else ""
    counts = {kind: int(n) for kind, n in re.findall(r"'([\w-]+)': (\d+)", last)}
    return counts, re.findall(r"^# program .*$", text, re.MULTILINE)


def read_damages(text: str) -> tuple[dict[str, int], list[str]]:
    """The counts of the last line, and the findings above it."""
    *lines, last = text.strip().splitlines() or [""]
    counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (tried|findings)", last)}
    return counts, lines


PARTS = {
    "suite": Part("all tests, on torch_xla's runtime", _suite("torch_xla"), read_pytest),
    "suite-pjrt": Part("all tests, on JAX's runtime", _suite("pjrt"), read_pytest),
    "survival": Part(
        "Python that must not end the process",
        lambda seed: {k: v for k, v in _suite("torch_xla")(seed).items() if "surviv" in k},
        read_pytest,
    ),
    "operations": Part(
        "torch's database: all operations, dtypes, transforms and samples",
        _operations,
        read_operations,
    ),
    "compile-times": Part(
        "CPU time of tracing and compiling each operation of 10,000 elements",
        _compile_times,
        read_programs,
    ),
    "programs": Part("random programs against eager torch", _programs, read_programs),
    "mutations": Part("damaged files and modules", _damages, read_damages),
}


def revision() -> str:
    """The commit, and a hash of what differs from it."""
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True)
    diff = subprocess.run(["git", "diff", "HEAD"], cwd=ROOT, capture_output=True)
    changed = f"+{hashlib.sha256(diff.stdout).hexdigest()[:8]}" if diff.stdout else ""
    return head.stdout.decode().strip() + changed


def run(part: str, chunk: str, command: list[str], seed: int, at: str) -> Result:
    """Run a chunk in a process; a status that nothing it printed explains is a failure."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    counts, failures = PARTS[part].read(done.stdout)
    if done.returncode not in (0, 5) and not any(counts.get(kind) for kind in BAD):
        counts["crash"] = 1
        failures.append(f"status {done.returncode}: {done.stdout[-2000:]}")
    return Result(part, chunk, seed, at, round(time.monotonic() - start, 1), counts, failures)


def table(results: list[Result]) -> str:
    """A line for each part, and the failures."""
    lines = []
    for part in dict.fromkeys(r.part for r in results):
        own = [r for r in results if r.part == part]
        counts = sum((Counter(r.counts) for r in own), Counter[str]())
        numbers = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
        lines.append(
            f"{part:12} {len(own):4} chunks {sum(r.seconds for r in own):8.0f} s  {numbers}"
        )
        lines += [f"    {r.chunk}: {line}" for r in own for line in r.failures]
    return "\n".join(lines)


def main(args: list[str] | None = None) -> int:
    """Run what the record lacks; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(f"{name:12} {part.description}" for name, part in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--jobs", type=int, default=2, help="chunks at once")
    options = parser.parse_args(args)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    at = revision()
    print(f"seed {options.seed}, revision {at}, record {options.record}", flush=True)
    options.record.parent.mkdir(parents=True, exist_ok=True)
    lines = options.record.read_text().splitlines() if options.record.exists() else []
    known = [Result(**json.loads(line)) for line in lines]
    results = [r for r in known if (r.seed, r.revision) == (options.seed, at)]
    done = {(r.part, r.chunk) for r in results}
    waiting = [
        (part, chunk, command)
        for part in options.parts or PARTS
        for chunk, command in PARTS[part].chunks(options.seed).items()
        if (part, chunk) not in done
    ]
    with ThreadPoolExecutor(options.jobs) as pool, options.record.open("a") as record:
        running = [pool.submit(run, *chunk, options.seed, at) for chunk in waiting]
        for future in as_completed(running):
            result = future.result()
            record.write(json.dumps(dataclasses.asdict(result)) + "\n")
            record.flush()
            results.append(result)
            print(f"{result.part} {result.chunk}: {result.counts}", flush=True)
    print(f"\n{table(results)}")
    return int(any(r.counts.get(kind) for r in results for kind in BAD))


if __name__ == "__main__":
    sys.exit(main())
