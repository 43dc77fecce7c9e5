"""Runs examples of the gallery, whose page must show what they print."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from docs.scripts import gallery
from tests.support.fresh import Server

Run = Callable[[ModuleType], Any]

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
CODE = """
import importlib, pickle, sys
import torch
import xfunc as xf

name, file = sys.argv[1:]
result = importlib.import_module(name).main()
result = xf.tree.map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, result)
pickle.dump(result, open(file, "wb"))
"""


def run(example: ModuleType, fresh: Server, folder: Path) -> Any:
    """The result of an example's `main`, in a process of its own, after a look at what it prints.

    XLA's flags are the user's: unoptimized code, as the tests have it, would take minutes.
    """
    file = folder / f"{example.__name__}.pickle"
    done = fresh.run(CODE, example.__name__, file, env={"XLA_FLAGS": ""})
    assert done.returncode == 0, done.stderr
    check_output(example, done.stdout)
    return pickle.loads(file.read_bytes())


def check_output(example: ModuleType, printed: str) -> None:
    """Raise unless the page shows, about, what the example printed."""
    name = example.__name__.rpartition(".")[2]
    shown = gallery.shown_outputs(gallery.PAGE.read_text(encoding="utf-8"))[name]
    assert agree(printed, shown), (
        f"docs/gallery.md shows\n\n{shown}\nand the example prints\n\n{printed}\n"
        f"python -m docs.scripts.gallery {name}"
    )


def agree(printed: str, shown: str) -> bool:
    """Whether the texts are equal but for their numbers, and those about equal.

    Numbers that training ends with depend on the versions of torch and XLA: an eighth more or
    less, or one in the last place, is no difference.
    """
    if NUMBER.sub("#", printed) != NUMBER.sub("#", shown):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(
        abs(float(a) - float(b)) <= abs(float(b)) / 8 + 1.01 * 10.0 ** -len(b.partition(".")[2])
        for a, b in pairs
    )
