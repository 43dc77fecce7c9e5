"""Train a small Llama on two CPU cores in a few minutes: `python -m examples.llama.demo`."""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

import xfunc as xf

from . import model, train
from .checkpoint import trained_weights
from .config import Run
from .data import tokenizer
from .data.data_config import DataConfig
from .model.complete import complete
from .model.plan import Plan
from .model.sampling import Settings
from .train import allocation, fit
from .train.train_config import Recipe

NEW, TEMPERATURE = 100, 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status is 0 if the loss fell."""
    parser = argparse.ArgumentParser(prog="python -m examples.llama.demo", description=__doc__)
    parser.add_argument("--data", default="python-docs", help="a file (default: Python's own docs)")
    parser.add_argument("--prompt", default='The "for" statement is used to')
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.steps < 2:
        parser.error("--steps must be at least 2")
    if xf.default_backend() == "cpu":
        allocation.keep_memory()
    console = Console(highlight=False, markup=False)
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer, "demo")
        data = DataConfig(files=(args.data,), seed=args.seed)
        how = {"seed": args.seed, "save_every": args.steps, "keep": 1}
        run = Run(str(folder), recipe(args.steps), data, **how)
        outcome = fit.fit(run, console)
        if outcome.ended != "done":
            return 1
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        steps = [line for line in lines if "loss" in line]
        text = sample(trained_weights.load(folder), args.prompt, args.seed)
    losses = [line["loss"] for line in steps]
    console.print(f"\n{text_plot(losses)}\n\n{text}\n", soft_wrap=True)
    host = statistics.median(line["host_ms"] for line in steps)
    rate = statistics.median(line.get("tokens_per_second", 0.0) for line in steps)
    console.print(f"{rate:,.0f} tokens/s, {host:.2f} ms of host time a step")
    held_out = f"held-out {outcome.held_out:.3f}"
    console.print(f"loss: first {losses[0]:.3f}, last {losses[-1]:.3f}, {held_out}")
    console.print(f"traces of train_step: {xf.trace_count(train.train_step)}")
    return 0 if losses[-1] < losses[0] else 1


def recipe(steps: int) -> Recipe:
    """What is trained. At this size memory is no concern: layers recompute nothing."""
    plan = Plan(policy="everything", attention="dense", loss_chunk=128)
    return Recipe(model.CONFIGS["demo-1m"], steps=steps, plan=plan, warmup=max(1, steps // 10))


def sample(found: trained_weights.Trained, prompt: str, seed: int) -> str:
    """The prompt with its continuation."""
    known, how = tokenizer.load(found.tokenizer), Settings(TEMPERATURE, seed=seed)
    [more] = complete(
        found.computing(), known, [known.encode_prompt(prompt)], NEW, how, config=found.recipe.model
    )
    return prompt + more


def text_plot(values: Sequence[float], width: int = 64, height: int = 8) -> str:
    """A column chart of the means of `width` runs of values, from zero up, in eighths of a line."""
    top = max(values)
    means = [float(part.mean()) for part in np.array_split(values, min(width, len(values)))]
    eighths = [round(mean / top * height * 8) for mean in means]
    rows = (
        "".join(" ▁▂▃▄▅▆▇█"[min(max(column - 8 * row, 0), 8)] for column in eighths)
        for row in reversed(range(height))
    )
    return "\n".join(
        f"{top:6.2f} {row}" if i == 0 else f"{'':7}{row}" for i, row in enumerate(rows)
    )


if __name__ == "__main__":
    sys.exit(main())
