"""Trace, compile, run and compare on a GPU: ``python -m benchmarks.gpu``."""

from __future__ import annotations

import argparse
import importlib
import sys

import torch

import xfunc as xf

PARTS = "demo calls llama lengths operations".split()


def main() -> None:
    """Parse the command line, and do each part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all by default")
    parser.add_argument("--small", action="store_true", help="tiny sizes, on a CPU too")
    parser.add_argument("--only", nargs="*", default=(), help="names of ways or operations")
    given = parser.parse_args()
    if not given.small and not torch.cuda.is_available():
        sys.exit("python -m benchmarks.gpu: torch finds no GPU here; --small needs none")
    for name in given.parts or PARTS:
        part = importlib.import_module(f"benchmarks.gpu.{name}")
        print(f"\n## {name}\n", flush=True)
        part.check(given.small, tuple(given.only))
        xf.clear_caches()


if __name__ == "__main__":
    main()
