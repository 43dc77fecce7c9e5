"""Run many random programs and count what comes of them::

    cd tests && python -m differential.eager --programs 3000 --seed 0

Failing programs are printed, one of each cause, in their smallest form.
"""

from __future__ import annotations

import argparse
import os
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
    options = parser.parse_args()
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

    import xfunc as xf

    from .compare import outcome
    from .generate import HEADER, generate
    from .minimise import minimised

    counts, causes = Counter[str](), Counter[str]()
    start = time.time()
    for number in range(options.first, options.first + options.programs):
        program = generate(options.seed, number)
        found = outcome(program)
        counts[found.kind] += 1
        causes[found.cause] += 1
        if found.kind in ("differs", "error") and causes[found.cause] <= options.show:
            text = program.source if options.whole else minimised(program.source)
            print(f"# program {program.name}: {outcome(text)}\n{HEADER}{text}", flush=True)
        if number % 50 == 0:
            xf.clear_caches()
    for cause, n in sorted(causes.items(), key=lambda item: -item[1]):
        print(n, cause[:200])
    print(dict(counts), f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
