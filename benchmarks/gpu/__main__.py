"""Export programs, or run them on a GPU: ``python -m benchmarks.gpu export FOLDER``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

PARTS = "demo serving llama lengths operations".split()
ON_A_CPU_TOO = {"operations"}


def main() -> None:
    """Parse the command line, and do each part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("what", choices=("export", "run"), help="export here, or run on a GPU")
    parser.add_argument("folder", type=Path, help="of the exported programs")
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all by default")
    parser.add_argument("--only", nargs="*", default=(), help="names of ways or operations")
    given = parser.parse_args()
    if given.what == "export":
        from xfunc.backends.torch_xla import runtime

        runtime.xla()  # First: imported otherwise, torch_xla guesses the device and warns.
        given.folder.mkdir(parents=True, exist_ok=True)
    parts = given.parts or PARTS
    if given.what == "run" and (problem := missing(given.folder, parts)):
        sys.exit(f"python -m benchmarks.gpu: {problem}")
    for name in parts:
        part = importlib.import_module(f"benchmarks.gpu.{name}")
        print(f"\n## {name}\n", flush=True)
        (part.export if given.what == "export" else part.check)(given.folder, tuple(given.only))


def missing(folder: Path, parts: Sequence[str]) -> str | None:
    """What these parts lack to run, in a line; None: nothing."""
    for name in parts:
        if not any(folder.glob(f"{name}*")):
            return f"{folder} has no programs of {name}: export {folder} {name} writes them"
    on_gpu = [name for name in parts if name not in ON_A_CPU_TOO]
    if on_gpu and not torch.cuda.is_available():
        return f"{', '.join(on_gpu)}: torch finds no GPU here; only operations runs on a CPU too"
    return None


if __name__ == "__main__":
    main()
