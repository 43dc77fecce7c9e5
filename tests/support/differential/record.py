"""Record what JAX gives for the generated programs. Run by a Python that has JAX 0.7.1::

    path/to/python -m tests.support.differential.record

JAX runs on the CPU in float32. A program is taken only if rounding does not matter to it: in
float64, and with inputs changed by one part in 100 000, it must give about the same (and the same
integers), or else the next attempt at its number is tried.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from .generate import COUNT, Generated, generate
from .measure import DATA, measurement, split

Results = dict[str, list[np.ndarray]]


def main() -> None:
    """Write the recorded programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--out", type=Path, default=DATA)
    options = parser.parse_args()
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}
    with options.out.open("w") as out:
        for number in range(options.count):
            out.write(json.dumps(record(number)) + "\n")


def record(number: int) -> dict[str, Any]:
    """The first well-conditioned program of a number, with its results."""
    for attempt in range(100):
        program = generate(number, attempt)
        inputs = program.arguments()
        want = run(program, inputs)
        if not all(np.isfinite(x).all() for xs in want.values() for x in xs) or constant(want):
            continue
        exact, moved = in_float64(program, inputs)
        if alike(want, exact, 1e-5) and alike(moved, exact, 2e-3):
            return {
                "number": number,
                "attempt": attempt,
                "nest": program.nest,
                "inputs": inputs,
                "reversible": program.reversible,
                "pushable": program.pushable,
                "want": {k: [plain(x) for x in xs] for k, xs in want.items()},
                "source": program.source,
            }
    raise RuntimeError(f"no attempt at program {number} is well-conditioned")


def run(program: Generated, inputs: dict[str, Any]) -> Results:
    """What JAX gives."""
    from . import vocabulary_jax as words

    measure = measurement(
        program.source, words, reversible=program.reversible, pushable=program.pushable
    )
    got = words.jit(measure)(*split(inputs, words.array))
    return {k: [np.asarray(x) for x in xs] for k, xs in got.items()}


def in_float64(program: Generated, inputs: dict[str, Any]) -> tuple[Results, Results]:
    """The same in float64, and once more with other inputs near by."""
    from jax.experimental import enable_x64  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    near = {k: scaled(v, 1 + 1e-5) if k.startswith("x") else v for k, v in inputs.items()}
    with enable_x64():
        return run(program, inputs), run(program, near)


def constant(results: Results) -> bool:
    """Whether nothing depends on the inputs."""
    derivatives = [*results.get("grad", []), *results.get("jvp", [])]
    return bool(derivatives) and not any(x.any() for x in derivatives)


def scaled(x: Any, factor: float) -> Any:
    return [scaled(v, factor) for v in x] if isinstance(x, list) else x * factor


def alike(got: Results, want: Results, tolerance: float) -> bool:
    """Whether two results agree, relative to the largest entry of each array or to 1."""
    for k, xs in want.items():
        for a, b in zip(got[k], xs, strict=True):
            if not np.issubdtype(b.dtype, np.floating):
                if not np.array_equal(a, b):
                    return False
            elif not np.abs(a - b).max(initial=0) <= tolerance * max(1, np.abs(b).max(initial=0)):
                return False
    return True


def plain(x: np.ndarray) -> Any:
    """Nested lists; floats with the seven digits that float32 has."""
    if np.issubdtype(x.dtype, np.floating):
        flat = [float(f"{v:.7g}") for v in x.reshape(-1).tolist()]
        return np.array(flat).reshape(x.shape).tolist()
    return x.tolist()


if __name__ == "__main__":
    main()
