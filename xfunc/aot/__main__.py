"""``python -m xfunc.aot``: install the newest TPU compiler, in an environment of its own."""

from __future__ import annotations

import argparse
import sys

from xfunc.aot.compilers import install
from xfunc.errors import CompileError


def main(args: list[str] | None = None) -> int:
    """Install it and say what it is; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m xfunc.aot", description=__doc__)
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATH", help="the Python to use (this one)"
    )
    given = parser.parse_args(args)
    try:
        found = install(given.python)
    except CompileError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{found} in {found.python}\nTo use it: xf.config.tpu_compiler = 'newest'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
