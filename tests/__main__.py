"""All tests, as a run of pytest on one device and one on 8, with the same arguments.

    python -m tests -n 2 --dist worksteal -k vmap

The last lines show the result of each, and of both together.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections import Counter

NO_TESTS = 5  # pytest's exit status
RUNS = {"one device": "none", "8 devices": "only"}  # the values of --sharded


def run(sharded: str, args: list[str]) -> tuple[int, str]:
    """Run pytest; its exit status and closing line."""
    command = [sys.executable, "-m", "pytest", f"--sharded={sharded}", *args]
    if sys.stdout.isatty():
        command.append("--color=yes")
    text = bytearray()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert isinstance(process.stdout, io.BufferedReader)
        while part := process.stdout.read1():
            os.write(sys.stdout.fileno(), part)
            text = (text + part)[-10000:]
    lines = re.sub(r"\x1b\[[\d;]*m", "", text.decode(errors="replace")).strip().splitlines()
    return process.returncode, lines[-1].strip("= !") if lines else ""


def combine(lines: list[str]) -> str:
    """One closing line for several runs."""
    counts, seconds = Counter[str](), 0.0
    for line in lines:
        for number, kind in re.findall(r"(\d+) ([a-z]+)", line.partition(" in ")[0]):
            counts[re.sub("(error|warning)s$", r"\1", kind)] += int(number)
        if match := re.search(r" in ([\d.]+)s", line):
            seconds += float(match[1])
    order = ("failed", "error", "passed")
    kinds = sorted(counts, key=lambda k: order.index(k) if k in order else len(order))
    return f"{', '.join(f'{counts[k]} {k}' for k in kinds) or 'no tests ran'} in {seconds:.2f}s"


def main(args: list[str]) -> int:
    statuses, closing = [], {}
    for devices, sharded in RUNS.items():
        status, closing[devices] = run(sharded, args)
        statuses.append(status)
        print(flush=True)
        if status not in (0, 1, NO_TESTS):  # interrupted, or misused
            break
    for devices, line in closing.items():
        print(f"on {devices}: {line or 'no tests'}")
    print(f" {combine([*closing.values()])} ".center(80, "="), flush=True)
    worst = [s for s in statuses if s not in (0, NO_TESTS)]
    return worst[0] if worst else min(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
