"""Training by several processes, of which one is killed at a random moment, again and again.

``python -m tests.llama.killed_host FOLDER KILLS [SEED]`` prints a line of JSON for each life:
for how many seconds the others went on, their exit statuses, and what they said last; then whether
the losses equal those of a run that nobody disturbed, bit for bit.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from tests.llama.several_processes import curve, ends, settings, started, until


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, 0 if there is none."""
    names = (path.name for path in (folder / "checkpoints").glob("*"))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def life(folder: Path, run: Path, draw: random.Random, more: list[str]) -> dict[str, Any]:
    """Train by 2 or 4 processes, and kill one of them at a random moment."""
    count, before = draw.choice([2, 4]), newest(run)
    victim, step = draw.randrange(count), before + 2 * draw.randrange(1, 5)  # Even ones are told.
    arguments = settings(folder, f"folder={run}", *more)
    with started(count, 8 // count, "fit", *arguments) as running:
        until(running[0], f"step {step}:")
        time.sleep(draw.uniform(0, 0.3))
        running[victim].kill()
        since = time.monotonic()
        found = ends(running)
        seconds = time.monotonic() - since
    return {
        "processes": count,
        "victim": victim,
        "began with": before,
        "killed after": step,
        "kept": newest(run),
        "seconds": round(seconds, 2),
        "statuses": [status for status, _ in found],
        "said": [(text.strip().splitlines() or [""])[-1][:150] for _, text in found],
    }


def main(folder: Path, kills: int, seed: int) -> None:
    """Kill, let the last life end, and compare with one undisturbed."""
    draw = random.Random(seed)
    more = [f"train.steps={min(10 * kills, 100)}", "save_every=4", "eval_every=20"]
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "programs")
    for _ in range(kills):
        print(json.dumps(life(folder, folder / "killed", draw, more)), flush=True)
    for name, count in (("killed", 2), ("whole", 1)):
        arguments = settings(folder, f"folder={folder / name}", *more)
        with started(count, 8 // count, "fit", *arguments) as running:
            print(name, [status for status, _ in ends(running)])
    same = curve(folder / "killed") == (whole := curve(folder / "whole"))
    print("the same losses:", same, len(whole))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(*sys.argv[3:] or ["0"]))
