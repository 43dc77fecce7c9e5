"""Runs of the training program that are killed at random moments, and begun again.

Given MADE FOLDER KIND KILLS SEED, `main` prints one line of JSON: how each life ended, and what it
printed. Each life is a fork of this process, which has imported everything and never starts XLA.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import jax  # noqa: F401  (slow to import: once, and not in each life)
from torch.distributed import checkpoint  # noqa: F401  (likewise)

from examples.llama import __main__ as program
from tests.llama import tuned


def live(made: Path, folder: Path, kind: str) -> int:
    """What a user would do: import, if that is not done, and train."""
    if kind == "text":
        pairs = tuned.settings(made, folder, kind)
        return program.main(["fit", *pairs, f"data.tokenizer={made}"])
    if not (folder / "config.yaml").exists():
        pairs = tuned.settings(made, folder, kind)
        if status := program.main(["import-hf", str(made / "hub"), *pairs]):
            return status
    return program.main(["fit", "--config", str(folder / "config.yaml")])


def life(made: Path, folder: Path, kind: str, kill_after: float | None, out: Path) -> int:
    """The status of a life, negative if it was killed."""
    pid = os.fork()
    if pid == 0:
        file = os.open(out, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        status = 3
        try:
            status = live(made, folder, kind)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Kill some lives, at moments drawn with a seed, and let one end."""
    made, folder, kind, kills = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    rng, lives = random.Random(f"{kind} {sys.argv[5]}"), []
    for number, kill_after in enumerate([*(rng.uniform(0.3, 3) for _ in range(kills)), None]):
        out = folder.with_name(f"life{number}")
        status = life(made, folder, kind, kill_after, out)
        lives.append((status, out.read_text(errors="replace")))
    print(json.dumps(lives))
