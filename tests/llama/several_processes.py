"""The training program as several processes on one machine, started as torchrun does.

As a program, ``python -m tests.llama.several_processes COMMAND ... + COMMAND ...`` runs commands
of the program one after another, in processes that join once.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from examples.llama import __main__ as program
from examples.llama.parallel import hosts
from examples.llama.train import fit, steps

CURVE = ("step", "loss", "grad_norm", "lr", "tokens", "skipped", "held_out_loss")
TORCHRUN = "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"


def settings(folder: Path, *more: str) -> list[str]:
    """Those of a short run of a tiny model; its text and tokens are in `folder`."""
    draw = random.Random(0)
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(
            " ".join(draw.choice(["the cat", "a dog", "sings", "or"]) for _ in range(9999))
        )
    return [
        *f"data.files={text} data.cache={folder / 'cache'} data.vocab=300 data.batch=8".split(),
        *"data.seq=16 train.model=tiny train.model.vocab=300 train.warmup=2 trackers=[]".split(),
        *"train.steps=12 save_every=4 eval_every=6 eval_batches=2".split(),
        *more,
    ]


@contextlib.contextmanager
def started(
    count: int, devices: int, *arguments: str, module: str = "examples.llama"
) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of the program with so many devices each; none is left behind."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    shared = {
        **os.environ,
        "CPU_NUM_DEVICES": str(devices),
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }
    shared.pop("NPROC", None)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=shared
            | dict(zip(TORCHRUN, ("127.0.0.1", str(port), str(k), str(count)), strict=True)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for k in range(count)
    ]

    def kill() -> None:
        for p in running:
            p.kill()

    limit = threading.Timer(240, kill)
    limit.start()
    try:
        yield running
    finally:
        limit.cancel()
        kill()
        for p in running:
            p.communicate()


def until(process: subprocess.Popen[str], text: str) -> str:
    """What a process says until a line that begins with a text, or until it ends."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith(text):
            break
    return said


def ends(running: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """The exit status of each process, and what it has said since."""
    said = [p.stdout.read() if p.stdout else "" for p in running]
    return [(p.wait(), text) for p, text in zip(running, said, strict=True)]


def curve(folder: Path) -> list[dict[str, Any]]:
    """The losses of a run."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text("utf-8").splitlines())
    return [{key: line[key] for key in CURVE if key in line} for line in lines]


def abort() -> int:
    """The second process kills the first and aborts, as JAX's client may when it hears of it."""
    first = hosts.from_first(os.getpid())
    if hosts.is_first():
        signal.pause()
    os.kill(first, signal.SIGKILL)
    return ctypes.CDLL(None).abort()  # without holding up other threads


def early(arguments: Sequence[str]) -> int:
    """Run a command, whose second process gets SIGTERM before the first step."""
    begin: Any = fit.begin

    def begins(*given: Any) -> Any:
        if not hosts.is_first():
            signal.raise_signal(signal.SIGTERM)
        return begin(*given)

    fit.begin = begins
    return program.main(arguments)


def stop_at(number: str, *arguments: str) -> int:
    """Run a command, which gets SIGTERM while it makes its step of that number."""
    make_step: Any = steps.train_step
    numbers = itertools.count(1)

    def stopping(*given: Any, **named: Any) -> Any:
        if next(numbers) == int(number):
            signal.raise_signal(signal.SIGTERM)
        return make_step(*given, **named)

    steps.train_step = stopping
    try:
        command, *rest = arguments
        return program.COMMANDS[command](rest)
    finally:
        steps.train_step = make_step


def main(arguments: Sequence[str]) -> None:
    """Run commands, which `+` parts."""
    if arguments[0] == "early":
        sys.exit(early(arguments[1:]))
    hosts.join()
    program.COMMANDS["abort"] = lambda _: abort()
    program.COMMANDS["stop-at"] = lambda rest: stop_at(*rest)
    for is_end, words in itertools.groupby(arguments, lambda word: word == "+"):
        if not is_end:
            command, *rest = words
            status = program.COMMANDS[command](rest)
            if hosts.is_first():
                print(f"{command} ends with {status}", flush=True)
    hosts.leave()


if __name__ == "__main__":
    main(sys.argv[1:])
