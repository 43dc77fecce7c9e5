"""Training that is killed at random moments and goes on, again and again.

Given FOLDER KILLS SEED, `main` prints one line of JSON: what each life began with, and
the step that it is known to have saved. `test_llama_checkpoints.py` judges it.

Each life is a fork of this process, which has imported everything and never starts XLA: a life
takes a fraction of the time that a new process would. The kernel ends it with SIGKILL.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import jax  # noqa: F401  (slow to import: once, and not in each life)
import torch
from torch.distributed import checkpoint  # noqa: F401  (likewise)

import xfunc as xf
from examples.llama.checkpoint.checkpoints import Checkpoints

EVERY = 2  # steps between checkpoints


def step(state: dict[str, Any]) -> dict[str, Any]:
    """One step of a training that mixes all that it has."""
    w, key = state["w"], state["key"]
    noise = xf.random.normal(xf.random.fold_in(key, state["step"]), w.shape)
    w = torch.cos(w @ state["m"]) + 0.1 * noise
    return {"w": w, "m": 0.9 * state["m"] + 0.01 * w, "key": key, "step": state["step"] + 1}


def digest(state: Any) -> str:
    """A name of the exact bits of a state."""
    leaves = [leaf.numpy().tobytes() for leaf in xf.tree.leaves(xf.device_get(state))]
    return hashlib.sha256(b"".join(leaves)).hexdigest()[:16]


def live(folder: Path, steps: int, out: int) -> None:
    """Train up to `steps` from what is in the folder, and tell of all that happens."""

    def tell(*what: object) -> None:
        os.write(out, json.dumps(what).encode() + b"\n")

    run = xf.jit(step, donate_argnums=0)
    w = torch.linspace(-1, 1, 256 * 256).reshape(256, 256)
    state: Any = {"w": w, "m": w.T.contiguous(), "key": xf.random.key(0), "step": torch.tensor(0)}
    state = xf.device_put(state)
    done, pending = 0, None
    with Checkpoints(folder, keep=2) as checkpoints:
        if checkpoints.latest() is not None:
            done, state, extra = checkpoints.restore(state)
            assert extra == {"data": 10 * done}
        tell("began", done, digest(state))
        while done < steps:
            state = run(state)
            done += 1
            tell("made", done, digest(state))
            if done % EVERY == 0:
                checkpoints.save(done, state, {"data": 10 * done})
                if pending is not None:  # `save` has waited for it.
                    tell("saved", pending)
                pending = done


def fork(folder: Path, steps: int) -> tuple[int, BinaryIO]:
    """Begin a life; its number, and where it tells."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(source)
        try:
            live(folder, steps, sink)
        except BaseException as error:
            os.write(sink, json.dumps(["failed", repr(error)]).encode() + b"\n")
        os._exit(0)
    os.close(sink)
    return pid, os.fdopen(source, "rb")


def told(pid: int, source: BinaryIO, kill_after: float | None) -> Iterator[list[Any]]:
    """What a life tells, until it ends or is killed some seconds after its first step."""
    with source:
        for i, line in enumerate(source):
            if line.endswith(b"\n"):  # else it was killed while it told this
                yield json.loads(line)
            if i == 1 and kill_after is not None:
                time.sleep(kill_after)
                os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main() -> None:
    """Kill some lives at moments of the seed, let one end, and compare with one undisturbed."""
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    lives = [[*told(*fork(folder / "killed", 10**6), rng.uniform(0, 0.3))] for _ in range(kills)]
    steps = 3 + max(what[1] for life in lives for what in life)
    lives.append([*told(*fork(folder / "killed", steps), None)])
    whole = [*told(*fork(folder / "whole", steps), None)]
    print(json.dumps({"lives": lives, "whole": whole}))
