"""Training by several processes, of which one is killed at a random moment, again and again.

``python -m tests.examples.killed_host FOLDER KILLS [SEED]`` prints a line of JSON for each life:
how long the others went on, their exit statuses, and what they said; then whether the losses equal
those of a run that nobody disturbed, bit for bit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CURVE = ("step", "loss", "grad_norm", "lr", "tokens", "held_out_loss")


def settings(folder: Path, *more: str) -> list[str]:
    """Those of a short run of a tiny model."""
    words = [random.Random(0).choice(["the", "cat", "and", "a", "dog", "sing"]) for _ in range(9)]
    text = folder / "text.txt"
    if not text.exists():
        draw = random.Random(0)
        text.write_text(" ".join(draw.choice(words) for _ in range(4000)), "utf-8")
    return [
        *(f"data.files={text} data.cache={folder / 'cache'} data.vocab=300 data.batch=8").split(),
        *"data.seq=16 train.model=tiny train.model.vocab=300 train.warmup=2 trackers=[]".split(),
        *"train.steps=12 save_every=4 eval_every=6 eval_batches=2".split(),
        *more,
    ]


def environment(rank: int, count: int, devices: int, port: int) -> dict[str, str]:
    """The variables that torchrun sets, and those of the CPU."""
    found = {
        **os.environ,
        "CPU_NUM_DEVICES": str(devices),
        "JAX_PLATFORMS": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(count),
        "RANK": str(rank),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    found.pop("NPROC", None)
    return found


def start(count: int, devices: int, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start the program as several processes, as torchrun does."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "examples.llama", *arguments],
            env=environment(rank, count, devices, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]


def ends(running: Sequence[subprocess.Popen[str]], timeout: float = 240) -> list[tuple[int, str]]:
    """The exit status of each process, and what it said."""
    until = time.monotonic() + timeout
    try:
        said = [p.communicate(timeout=until - time.monotonic())[0] for p in running]
    finally:
        for p in running:
            p.kill()
    return [(p.returncode, text) for p, text in zip(running, said, strict=True)]


def lines(folder: Path) -> list[dict[str, Any]]:
    """What a run's folder has of its curve."""
    path = folder / "metrics.jsonl"
    found = map(json.loads, path.read_text("utf-8").splitlines()) if path.exists() else ()
    return [{k: line[k] for k in CURVE if k in line} for line in found]


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, 0 if there is none."""
    names = (path.name for path in (folder / "checkpoints").glob("*"))
    return max((int(name) for name in names if name.isdecimal()), default=0)


def life(folder: Path, draw: random.Random, steps: int) -> dict[str, Any]:
    """Train by 2 or 4 processes, and kill one of them between two steps or within one."""
    run = folder / "killed"
    count = draw.choice([2, 4])
    before = newest(run)
    running = start(count, 8 // count, "fit", *settings(folder, f"folder={run}", *_long(steps)))
    wanted, began = before + draw.randrange(0, 10), time.monotonic()
    while len([x for x in lines(run) if "loss" in x and x["step"] >= wanted]) == 0:
        if any(p.poll() is not None for p in running) or time.monotonic() - began > 120:
            break
        time.sleep(0.05)
    time.sleep(draw.uniform(0, 0.5))
    victim = draw.randrange(count)
    reached = max((x["step"] for x in lines(run)), default=0)
    running[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    found = ends(running)
    return {
        "processes": count,
        "victim": victim,
        "began with": before,
        "reached": reached,
        "kept": newest(run),
        "seconds": round(time.monotonic() - killed, 2),
        "statuses": [status for status, _ in found],
        "said": [text.strip().rpartition("\n")[2] for _, text in found],
    }


def _long(steps: int) -> list[str]:
    return [f"train.steps={steps}", "save_every=5", "eval_every=20"]


def main(folder: Path, kills: int, seed: int) -> None:
    """Kill, let the last life end, and compare with one undisturbed."""
    draw, steps = random.Random(seed), 10 * kills
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "programs")
    for _ in range(kills):
        print(json.dumps(life(folder, draw, steps)), flush=True)
    curves = []
    for name, count in (("killed", 2), ("whole", 1)):
        run = folder / name
        arguments = settings(folder, f"folder={run}", *_long(steps))
        print(name, [status for status, _ in ends(start(count, 8 // count, "fit", *arguments))])
        curves.append(lines(run))
    print("the same losses:", curves[0] == curves[1], len(curves[1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(*sys.argv[3:] or ["0"]))
