"""A second process: the time to its first result, with and without files on disk.

Two programs, from the start of the process to numbers, each in its own process: the loss and
gradient of the 12-layer Llama of `trace`, and a program of 5,000 lines of HLO. And the training
program, from its start to the loss of its first step, with a folder of programs.

- ``jit``: the Python code is traced and compiled;
- ``exported``: a file of `xfunc.export` is loaded and compiled;
- ``compiled``: the cache of compiled programs is full.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import xfunc as xf
from benchmarks import llama
from benchmarks.peers import answer_of
from benchmarks.timing import Row, table

ROUNDS = 3
CASES = "jit", "exported", "compiled"
C = llama.Config()


def loss(params: dict[str, Any], tokens: torch.Tensor) -> torch.Tensor:
    """Of the Llama."""
    return llama.loss(params, tokens, C)


def chain(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Layers that XLA can neither merge nor share: 5,000 lines of HLO with the gradient."""
    for k in range(116):
        x = torch.tanh(x @ weights[k % 4] + k) * (1 + 1 / (k + 1))
    return x.square().mean()


def of_llama(leaf: Callable[[Any], Any]) -> Any:
    """The parameters of the Llama, leaf by leaf."""
    return xf.tree.map(leaf, llama.shapes(C), is_leaf=lambda x: isinstance(x, tuple))


def program(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A jitted function, and its arguments."""
    if name == "llama":
        tokens = torch.ones((C.batch, C.seq + 1), dtype=torch.int64)
        return xf.jit(xf.value_and_grad(loss)), (of_llama(lambda s: torch.full(s, 0.01)), tokens)
    return xf.jit(xf.value_and_grad(chain)), (torch.full((4, 32, 32), 0.01), torch.ones(8, 32))


def main(rounds: int = ROUNDS) -> None:
    """Print the tables."""
    rows = []
    for name in ("llama", "long"):
        with tempfile.TemporaryDirectory() as folder:
            lines = int(_started(name, "write", folder)["lines"])
            _started(name, "compiled", folder)
            found = {
                how: min(
                    (_started(name, how, folder) for _ in range(rounds)),
                    key=lambda r: r["together"],
                )
                for how in CASES
            }
        print(f"## second process, {name} ({lines} lines): seconds to the first result\n")
        print("| | import | until ready | trace, compile, run | together |")
        print("|---|---|---|---|---|")
        for how, times in found.items():
            cells = " | ".join(f"{x:.2f}" for x in times.values())
            print(f"| {how} | {cells} |")
        print()
        first = found["jit"]["together"]
        rows += [Row(f"{name}: {how}", found[how]["together"], first, 0.3) for how in CASES[1:]]
    rows += example(rounds)
    print(table("second process: of the first one's time, to the first result", rows))


def example(rounds: int) -> list[Row]:
    """The training program, from its start to the first step's loss."""
    with tempfile.TemporaryDirectory() as folder:
        _started("fit", f"{folder}/before", folder)  # makes the tokens
        kept = [f"{folder}/programs{k}" for k in range(rounds)]
        first = min(_started("fit", programs, folder) for programs in kept)
        second = min(_started("fit", kept[0], folder) for _ in kept)
    names = "the training program (small-11m)", "the same, but for imports"
    return [Row(n, ours, theirs, 0.3) for n, ours, theirs in zip(names, second, first, strict=True)]


class _Heard(io.StringIO):
    """A console that notes when the loss of the first step is printed."""

    at = 0.0

    def write(self, text: str) -> int:
        if text.startswith("step 1:") and not self.at:
            self.at = time.time()
        return super().write(text)


def fit(programs: str, folder: str, begin: float) -> None:
    """A step of the training program; prints how long it took to get there, and from here."""
    imported = time.time()
    from rich.console import Console

    from examples.llama import config
    from examples.llama.train.fit import fit as train

    with tempfile.TemporaryDirectory() as own:
        settings = {
            "folder": own,
            "programs": programs,
            "data.cache": f"{folder}/data",
            "train.steps": 1,
            "train.warmup": 0,
            "eval_every": 1000,
        }
        heard = _Heard()
        run = config.read("small-11m", [f"{k}={v}" for k, v in settings.items()])
        train(run, Console(file=heard, highlight=False, markup=False))
    print(json.dumps([heard.at - begin, heard.at - imported]))


def _started(name: str, how: str, folder: str) -> Any:
    """The measurements of a fresh process, with bytecode on disk as an installed package has it."""
    given = name, how, folder, str(time.time())
    module = "benchmarks.second_process"
    return answer_of(sys.executable, module, *given, PYTHONDONTWRITEBYTECODE="")


def child(name: str, how: str, folder: str, begin: float) -> None:
    """Run one case in this process, and print how long it took."""
    imported = time.time()
    if how == "compiled":
        xf.config.set_compilation_cache_dir(Path(folder, "compiled"))
    step, args = program(name)
    file = Path(folder, "exported")
    if how == "write":
        lowered = step.lower(*args)
        xf.export.save(lowered, file)
        print(json.dumps({"lines": lowered.as_text().count("\n")}))
        return
    if how == "exported":
        step = xf.export.load(file)
    ready = time.time()
    xf.device_get(step(*args))
    done = time.time()
    times = {"import": imported - begin, "ready": ready - imported, "run": done - ready}
    print(json.dumps(times | {"together": done - begin}))


if __name__ == "__main__":
    what, how, where, begin = sys.argv[1:]
    if what == "fit":
        fit(how, where, float(begin))
    else:
        child(what, how, where, float(begin))
