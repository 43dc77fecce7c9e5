"""The table: its parts, and the lines of each."""

from __future__ import annotations

import argparse
import importlib
import time

PARTS = {
    "exact": "results at the exact shape, whatever the padding contains",
    "peaks": "memory over all sizes at once",
    "limit": "plans under a memory limit",
    "calls": "calls with unseen sizes",
    "picture": "memory of each plan and bucket: writes docs/images/dynamic.png",
    "training": "tokens per second next to padding, packing, exact shapes and torch",
    "capped": "the same within the memory that padding takes",
    "tpu": "the masked step compiled for a TPU that need not be present",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    group = parser.add_argument_group("dynamic")
    group.add_argument("--part", nargs="+", choices=list(PARTS), help="of dynamic; default: all")


def main(options: argparse.Namespace) -> None:
    """Print the parts that were asked for."""
    print("## dynamic: one program for all sizes of a bucket")
    for name in options.part or PARTS:
        start = time.perf_counter()
        print(f"\n{name}: {PARTS[name]}\n", flush=True)
        importlib.import_module(f"benchmarks.dynamic.{name}").main()
        print(f"\n({name} took {time.perf_counter() - start:.0f} s)", flush=True)
