"""Single lines of the programs, from the templates of a file: see `slots`.

A heading of the file gives a group's name, and how often a line is of it.
"""

from __future__ import annotations

import re
from pathlib import Path

from .slots import Slots
from .writer import DoesNotFit, Writer


def _read(text: str) -> dict[str, tuple[list[str], int]]:
    groups: dict[str, tuple[list[str], int]] = {}
    for part in text.strip().split("\n\n"):
        heading, *templates = part.splitlines()
        found = re.fullmatch(r"\[([a-z ]+), (\d+)\]", heading)
        assert found, heading
        groups[found[1]] = templates, int(found[2])
    return groups


GROUPS = _read((Path(__file__).parent / "templates.txt").read_text())


def operation(w: Writer) -> None:
    """Write one line."""
    names = list(GROUPS)
    for _ in range(30):
        (group,) = w.random.choices(names, [GROUPS[n][1] for n in names])
        template = w.choose(GROUPS[group][0])
        try:
            if group != "in place":
                w.let(Slots(w).fill(template))
                return
            if w.chance(0.5) and not any(w.may_write(w.values[v]) for v in w.scope):
                w.let(Slots(w).fill("{x}.clone()"))
            w.do(Slots(w).fill(template))
            return
        except DoesNotFit:
            continue
    raise DoesNotFit
