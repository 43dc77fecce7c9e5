"""The command line, and what it writes into docs/operations.md."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import fnmatch
import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from .cases import DTYPES, entries
from .run import ROOT, Finding, measure, units
from .transforms import TRANSFORMS

PAGE = ROOT / "docs" / "operations.md"
BEGIN, END = "<!-- operations: begin -->", "<!-- operations: end -->"

WORDS = {
    "wrong": "Wrong",
    "crash": "Ends the process",
    "error": "Another error",
    "refused": "Refused",
    "absent": "Torch itself cannot run it on arrays of the CPU",
}


def table(found: Sequence[Finding]) -> str:
    """The findings in Markdown: how many are right, and all that are not."""
    dtypes = [d for d in DTYPES if any(f.dtype == d for f in found)]
    lines = [f"| right of all | {' | '.join(f'`{d}`' for d in dtypes)} |"]
    lines.append("|---" * (len(dtypes) + 1) + "|")
    for transform in TRANSFORMS:
        row = [f for f in found if f.transform == transform and f.status != "absent"]
        if row:
            cells = (_cell([f for f in row if f.dtype == d]) for d in dtypes)
            lines.append(f"| `{transform}` | {' | '.join(cells)} |")
    counts = collections.Counter(f.status for f in found if f.status != "absent")
    total = ", ".join(f"{counts[s]} {w.lower()}" for s, w in WORDS.items() if s != "absent")
    lines += ["", f"In all, {counts['right']} right, {total}."]
    for status, word in WORDS.items():
        listed = _listed([f for f in found if f.status == status])
        if listed and status != "absent":
            lines += ["", _wrapped(f"**{word}**: {listed}.")]
    nowhere = {f.name for f in found} - {f.name for f in found if f.status != "absent"}
    if nowhere:
        names = ", ".join(f"`{n}`" for n in sorted(nowhere))
        lines += ["", _wrapped(f"**{WORDS['absent']}**: {names}.")]
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False, break_long_words=False)


def _cell(found: Sequence[Finding]) -> str:
    right = sum(f.status == "right" for f in found)
    return f"{right} of {len(found)}" if found else ""


def _listed(found: Iterable[Finding]) -> str:
    """Names, each with the transforms and dtypes; those that fail under `jit` fail under all."""
    where: dict[str, dict[str, list[str]]] = {}
    for f in found:
        where.setdefault(f.name, {}).setdefault(f.transform, []).append(f.dtype)
    forward = ", ".join(f"`{n}`" for n, places in where.items() if "jit" in places)
    others: dict[str, list[str]] = {}
    for name, places in where.items():
        if "jit" not in places:
            others.setdefault(", ".join(f"`{t}`" for t in places), []).append(f"`{name}`")
    parts = [forward] if forward else []
    parts += [f"under {transforms}: {', '.join(names)}" for transforms, names in others.items()]
    return "; ".join(parts)


def write(found: Sequence[Finding]) -> None:
    """Put the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{after}", encoding="utf-8")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What of the database to run; without any, all of it, and the page is written."""
    group = parser.add_argument_group("operations")
    group.add_argument("--dtype", nargs="+", choices=list(DTYPES), metavar="DTYPE")
    group.add_argument("--transform", nargs="+", choices=list(TRANSFORMS), metavar="TRANSFORM")
    group.add_argument("--name", nargs="+", metavar="PATTERN", help="such as 'linalg.*'")
    group.add_argument("--third", type=int, choices=range(3), help="every third operation, from K")
    group.add_argument("--samples", type=int, default=2, help="of each operation (2)")
    group.add_argument("--record", type=Path, metavar="FILE", help="add the findings as JSON lines")
    group.add_argument("--from-record", type=Path, metavar="FILE", help="write the page from these")


def main(options: argparse.Namespace) -> None:
    """Measure, and write the page if it is everything; takes about two hours on one core."""
    if options.from_record:
        lines = options.from_record.read_text(encoding="utf-8").splitlines()
        latest = {
            (f.name, f.dtype, f.transform): f for f in (Finding(**json.loads(x)) for x in lines)
        }
        write(list(latest.values()))
        return
    names = [n for n in entries() if any(fnmatch.fnmatch(n, p) for p in options.name or ["*"])]
    if options.third is not None:
        names = names[options.third :: 3]
    chosen = units(options.dtype or DTYPES, options.transform or TRANSFORMS, names, options.samples)
    found = measure(chosen, options.record)
    if not (options.dtype or options.transform or options.name or options.third is not None):
        write(found)
    for f in found:
        if f.status in ("wrong", "crash", "error"):
            print(json.dumps(dataclasses.asdict(f)))
    print(table(found))
