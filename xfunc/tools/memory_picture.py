"""The picture of a `MemoryReport`: memory in use at each step of a program, by line."""

from __future__ import annotations

import linecache
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from xfunc.errors import fail, format_error, short_repr
from xfunc.hlo.estimate.liveness import Peak

if TYPE_CHECKING:
    from xfunc.tools.memory_report import MemoryReport

ARGUMENTS = "the arguments"

# One for each line drawn separately.
_COLOURS = [f"tab:{c}" for c in "blue orange green red purple brown pink cyan".split()]
_OTHER = "other"
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def save(found: MemoryReport, path: str | os.PathLike[str]) -> None:
    """See `MemoryReport.save_picture`."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        problem = "save_picture draws with matplotlib, which is not installed"
        hint = "pip install matplotlib."
        raise ImportError(format_error(problem, hint)) from error
    if not os.fspath(path).endswith(".png"):
        problem = f"save_picture was given {short_repr(path)}"
        fail(ValueError, problem, "give a name that ends in .png.")
    peaks = [r.peak_per_chip or r.peak for r in found.rows]
    stacks = [_by_line(p) for p in peaks]
    unit, scale = next(u for u in _UNITS if max(p.bytes for p in peaks) >= u[1] or u[1] == 1)
    busy = _busiest(stacks)
    colours: dict[str, str] = dict(zip(busy, _COLOURS, strict=False))
    colours |= {ARGUMENTS: "dimgrey", _OTHER: "lightgrey"}
    figure = Figure(figsize=(9, 2 + 1.3 * len(found.rows)), layout="constrained")
    panels: object = figure.subplots(len(found.rows), 1, squeeze=False, sharey=True)[:, 0]
    for axes, row, stack in zip(panels, found.rows, stacks, strict=True):
        others = [h for line, h in stack.items() if line not in colours]
        heights = [stack.get(ARGUMENTS), sum(others, np.zeros(1)), *map(stack.get, busy)]
        shades = [colours[ARGUMENTS], colours[_OTHER], *map(colours.get, busy)]
        size = len(stack[ARGUMENTS])
        filled = [np.broadcast_to(0 if h is None else h, (size,)) / scale for h in heights]
        edges = np.arange(size + 1)
        tops = [np.append(h, h[-1]) for h in np.cumsum(filled, axis=0)]
        for below, above, shade in zip([0 * tops[0], *tops], tops, shades, strict=False):
            axes.fill_between(edges, below, above, step="post", color=shade, linewidth=0)
        axes.set_title(row.policy, loc="left", fontsize=9)
        axes.set_ylabel(unit, fontsize=8)
        axes.tick_params(labelsize=8)
        axes.margins(x=0)
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("steps of the program; those of a loop's body once", fontsize=8)
    chip = " on one chip" if any(r.peak_per_chip for r in found.rows) else ""
    figure.suptitle(f"{found.name}: memory{chip}, by the line that it is for", fontsize=10)
    figure.legend(
        [Patch(color=c) for c in colours.values()],
        [shown_line(line) for line in colours],
        loc="outside lower center",
        ncols=2,
        fontsize=7,
    )
    figure.savefig(path, dpi=120, format="png")


def _by_line(peak: Peak) -> dict[str, np.ndarray]:
    """For each line, the memory that it holds at each step."""
    n = len(peak.timeline)
    changes = {ARGUMENTS: np.zeros(n + 1)}
    changes[ARGUMENTS][[0, n]] = peak.arguments, -peak.arguments
    for s in peak.spans:
        change = changes.setdefault(s.held.line, np.zeros(n + 1))
        change[s.start] += s.held.bytes
        change[s.end] -= s.held.bytes
    return {line: np.cumsum(change)[:n] for line, change in changes.items()}


def _busiest(stacks: Sequence[dict[str, np.ndarray]]) -> list[str]:
    """The lines that hold the most memory at any time, under any policy."""
    most: dict[str, float] = {}
    for line, heights in (item for stack in stacks for item in stack.items()):
        if line not in ("", ARGUMENTS):
            most[line] = max(most.get(line, 0.0), float(heights.max()))
    return sorted(most, key=lambda line: -most[line])[: len(_COLOURS)]


def shown_line(line: str) -> str:
    """The user's line, given as ``file:line``, with its text."""
    file, _, number = line.rpartition(":")
    text = linecache.getline(file, int(number)).strip() if file else ""
    text = text if len(text) <= 60 else f"{text[:57]}..."
    where = f"{os.path.basename(file)}:{number}" if file else line
    return f"{where}: {text}" if text else where
