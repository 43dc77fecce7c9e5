"""Run benchmarks by name: ``python -m benchmarks trace dispatch scan``."""

from __future__ import annotations

import argparse

from benchmarks import dynamic, operations


def main() -> None:
    """Parse the command line and print one table per benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="+",
        choices=(
            "start trace dispatch scan step pods linalg remat training generation second_process "
            "dynamic operations"
        ).split(),
        metavar="name",
        help="start, trace, dispatch, scan, step, pods, linalg, training, generation, "
        "second_process, dynamic, operations (writes docs/operations.md), remat (writes "
        "docs/images/remat.png)",
    )
    parser.add_argument(
        "--jax-python",
        metavar="PATH",
        help="a Python that has JAX, for comparisons with it (or set XFUNC_JAX_PYTHON)",
    )
    operations.add_options(parser)
    dynamic.add_options(parser)
    options = parser.parse_args()
    for name in options.names:
        if name == "start":
            from benchmarks import start

            start.main(options.jax_python)
        elif name == "trace":
            from benchmarks import trace

            trace.main(options.jax_python)
        elif name == "dispatch":
            from benchmarks import dispatch

            dispatch.main()
        elif name == "scan":
            from benchmarks import scan

            scan.main()
        elif name == "step":
            from benchmarks import step

            step.main(options.jax_python)
        elif name == "pods":
            from benchmarks import pods

            pods.main(options.jax_python)
        elif name == "linalg":
            from benchmarks import linalg

            linalg.main(options.jax_python)
        elif name == "remat":
            from benchmarks import remat

            remat.main()
        elif name == "dynamic":
            dynamic.main(options)
        elif name == "training":
            from benchmarks import training

            training.main()
        elif name == "generation":
            from benchmarks import generation

            generation.main()
        elif name == "operations":
            operations.main(options)
        else:
            from benchmarks import second_process

            second_process.main()


if __name__ == "__main__":
    main()
