"""``python -m xfunc.export pack DIR``: what runs exported programs, for machines to copy it to."""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import sys
from pathlib import Path

from xfunc.core.packed import FOLDER

_HERE = Path(__file__).parents[1]
_NEEDED = ("protobuf",)  # beside torch, JAX and what they need themselves


def pack(folder: Path) -> None:
    """Copy xfunc into a folder, and in it what it needs that torch and JAX do not.

    protobuf runs on any Python and machine: where its compiled part does not load, it does without.
    """
    copy = folder / _HERE.name
    ignored = shutil.ignore_patterns("__pycache__", FOLDER)
    shutil.copytree(_HERE, copy, ignore=ignored)  # not as links: transforms and sharding are some
    for package in _NEEDED:
        files = importlib.metadata.files(package)
        if not files:
            raise FileNotFoundError(f"the installed {package} does not list its files")
        for file in files:
            to = copy / FOLDER / file
            if ".." not in file.parts and "__pycache__" not in file.parts:
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), to)


def main(args: list[str] | None = None) -> int:
    """Pack and say how to use it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m xfunc.export", description=__doc__)
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack", help="copy xfunc and what it needs into a folder")
    packing.add_argument("folder", type=Path, metavar="DIR")
    folder: Path = parser.parse_args(args).folder
    try:
        pack(folder)
    except (OSError, shutil.Error) as error:
        print(f"xfunc could not be packed into {folder}: {error}", file=sys.stderr)
        print("Hint: name a folder without xfunc in it, which can be written to.", file=sys.stderr)
        return 1
    print(
        f"Copy {folder} to the machine, which needs torch and JAX, and there:\n"
        f"PYTHONPATH={folder} python ..."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
