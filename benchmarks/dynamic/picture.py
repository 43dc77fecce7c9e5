"""The picture of `explain`: the peak of each plan over all sizes, the limit, and the buckets."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import xfunc as xf
from benchmarks.dynamic.limit import BOX, Known, plan
from benchmarks.dynamic.setting import CAP, lengths

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "dynamic.png"
SHOWN = ("everything", "dots", "min_cut", "cut at 1/4")
PART = 0.55  # of what the largest size takes if everything is kept
MIB = 2**20


def main() -> None:
    """Print the buckets, and write the picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    known = {name: plan(name) for name in SHOWN}
    limit = int(PART * known["everything"].estimate({"S": CAP}))
    plans = Known(limit)
    buckets = [max(b, BOX.ranges["S"].min) for b in xf.buckets([*lengths(5000), CAP], n=8)]
    chosen = {b: plans.choose({"S": b}) for b in buckets}
    sizes = np.unique(np.linspace(16, CAP, 16, dtype=int))
    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    colors: dict[str, str] = {}
    for k, (name, own) in enumerate(known.items()):
        peaks = np.array([own.estimate({"S": int(s)}) for s in sizes]) / MIB
        colors[name] = f"C{k}"
        axes.plot(sizes, peaks, c=colors[name], lw=1.2, label=name)
        end = own.largest(BOX, {"S": CAP}, "S", limit)
        if end is not None and end < CAP:
            axes.plot([end], [limit / MIB], "o", c=colors[name], ms=5)
    axes.axhline(limit / MIB, c="black", ls="--", lw=1, label="memory_limit")
    low = 0
    print("| bucket | plan | peak |\n|---|---|---|")
    for b, best in chosen.items():
        peak = best.estimate({"S": b}) / MIB
        color = colors.get(best.name, "gray")
        axes.fill_between([low, b], [peak, peak], color=color, alpha=0.25, lw=0)
        axes.plot([low, b, b], [peak, peak, 0], c=color, lw=0.8)
        print(f"| S<={b} | {best.name} | {peak:.0f} MiB |")
        low = b
    axes.set_xlim(0, CAP)
    axes.set_ylim(0, 1.15 * limit / MIB)
    axes.set_xlabel("S, tokens in a row")
    axes.set_ylabel("peak, MiB")
    axes.legend(fontsize=9, title="kept for the backward pass", loc="upper left")
    axes.set_title("Lines: all sizes; dots: where a plan reaches the limit; areas: the buckets")
    axes.grid(alpha=0.3)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    print(f"\n{PICTURE.relative_to(PICTURE.parents[2])} is written.")
