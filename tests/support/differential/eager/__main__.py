"""Run many random programs and count what comes of them::

    python -m tests.support.differential.eager --programs 3000 --seed 0

Failing programs are printed, one of each cause, in their smallest form. The programs run in a
process of their own: one that ends it is counted as a crash, and the rest run in another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter


def main() -> None:
    """Run, print failures, print counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--show", type=int, default=1, help="failures shown for each cause")
    parser.add_argument("--whole", action="store_true", help="do not make failures smaller")
    parser.add_argument("--here", action="store_true", help="run in this process, as lines of JSON")
    options = parser.parse_args()
    if options.here:
        _run(options)
        return
    kinds, causes = Counter[str](), Counter[str]()
    start, number, end = time.time(), options.first, options.first + options.programs
    while number < end:
        rest = [f"--{k}={v}" for k, v in (("first", number), ("programs", end - number))]
        command = [sys.executable, "-m", __spec__.name, "--here", *sys.argv[1:], *rest]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if not line.startswith("{"):
                    print(line, end="", flush=True)
                    continue
                found = json.loads(line)
                number = found["number"] + 1
                kinds[found["kind"]] += 1
                causes[found["cause"]] += 1
        if process.returncode:
            print(f"# program {options.seed}/{number}: the process ended ({process.returncode})")
            kinds["crash"] += 1
            causes[f"crash: {options.seed}/{number}"] += 1
            number += 1
    for cause, n in sorted(causes.items(), key=lambda item: -item[1]):
        print(n, cause[:200])
    print(dict(kinds), f"{time.time() - start:.0f} s")


def _run(options: argparse.Namespace) -> None:
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

    import xfunc as xf

    from .compare import outcome
    from .generate import HEADER, generate
    from .minimise import minimised

    shown = Counter[str]()
    for number in range(options.first, options.first + options.programs):
        program = generate(options.seed, number)
        found = outcome(program)
        line = {"number": number, "kind": found.kind, "cause": found.cause}
        print(json.dumps(line), flush=True)
        shown[found.cause] += 1
        if found.kind in ("differs", "error") and shown[found.cause] <= options.show:
            text = program.source if options.whole else minimised(program.source)
            print(f"# program {program.name}: {outcome(text)}\n{HEADER}{text}", flush=True)
        if number % 50 == 0:
            xf.clear_caches()


if __name__ == "__main__":
    main()
