"""Export programs, or run them on a GPU: ``python -m benchmarks.gpu export FOLDER``."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

PARTS = "demo llama lengths operations".split()


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
    for name in given.parts or PARTS:
        part = importlib.import_module(f"benchmarks.gpu.{name}")
        print(f"\n## {name}\n", flush=True)
        (part.export if given.what == "export" else part.check)(given.folder, tuple(given.only))


if __name__ == "__main__":
    main()
