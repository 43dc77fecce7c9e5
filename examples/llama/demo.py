"""Train a small Llama on two CPU cores in a few minutes: `python -m examples.llama.demo`."""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer

import xfunc as xf

from . import data, model, train

VOCAB, BATCH, SEQ, TEMPERATURE = 2048, 8, 128, 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; the exit status is 0 if the loss fell."""
    parser = argparse.ArgumentParser(prog="python -m examples.llama.demo", description=__doc__)
    parser.add_argument("--data", type=Path, help="a text file (default: Python's own reference)")
    parser.add_argument("--prompt", default='The "for" statement is used to')
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    args = parser.parse_args(argv)
    if args.steps < 1:
        parser.error("--steps must be at least 1")
    console = Console(highlight=False, markup=False)

    text = data.load_text(args.data)
    tokenizer = data.train_tokenizer(text, VOCAB)
    tokens, held_out = data.encode(tokenizer, text)
    vocab = tokenizer.get_vocab_size()
    config = model.Config(
        vocab, hidden=128, intermediate=384, layers=4, heads=4, kv_heads=2, tied=True
    )
    recipe = train.Recipe(config, steps=args.steps, warmup=max(1, args.steps // 10))
    state = xf.device_put(train.init(recipe, args.seed))
    size = sum(leaf.numel() for leaf in xf.tree.leaves(state.params))
    console.print(f"{size:,} parameters, {len(tokens):,} tokens, {args.steps} steps")

    state, losses = fit(state, tokens, recipe, args.seed, console)
    test = held_out_loss(state.params, held_out, config)
    args.out.mkdir(parents=True, exist_ok=True)
    save_plot(losses, args.out / "loss.png")
    console.print(f"\n{text_plot(losses)}\n")
    console.print(sample(state.params, tokenizer, args.prompt, config, args.seed), soft_wrap=True)
    console.print(f"\nloss: first {losses[0]:.3f}, last {losses[-1]:.3f}, held-out {test:.3f}")
    console.print(f"loss curve: {args.out / 'loss.png'}")
    console.print(f"traces of train_step: {xf.trace_count(train.train_step)}")
    return 0 if losses[-1] < losses[0] else 1


def fit(
    state: train.State, tokens: data.Tokens, recipe: train.Recipe, seed: int, console: Console
) -> tuple[train.State, list[float]]:
    """Train, and return the loss of every step."""
    losses, host_ms, pending, start = [], [], None, time.perf_counter()
    columns = BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("compiling", total=recipe.steps)
        for step in range(recipe.steps):
            batch = data.batch_at(tokens, step, seed=seed, batch=BATCH, seq=SEQ)
            begin = time.thread_time()  # What the thread spends, without what it waits.
            state, metrics = train.train_step(state, batch, recipe=recipe)
            host_ms.append((time.thread_time() - begin) * 1e3)
            # Read the loss one step late: the device has the next step to do while the host waits.
            if pending is None:
                start = time.perf_counter()
            else:
                losses.append(float(xf.device_get(pending)))
                rate = step * BATCH * SEQ / (time.perf_counter() - start)
                text = f"loss {losses[-1]:.3f}  {rate:,.0f} tokens/s  host {host_ms[-1]:.2f} ms"
                progress.update(task, completed=step, description=text)
            pending = metrics.loss
        losses.append(float(xf.device_get(pending)))
        progress.update(task, completed=recipe.steps)
    rate = (recipe.steps - 1) * BATCH * SEQ / (time.perf_counter() - start)
    console.print(f"{rate:,.0f} tokens/s, {statistics.median(host_ms):.2f} ms of host time a step")
    return state, losses


def held_out_loss(
    params: model.Params, tokens: data.Tokens, config: model.Config, batches: int = 8
) -> float:
    """The mean loss over a few batches that training never saw."""
    losses = [
        train.eval_loss(params, data.batch_at(tokens, i, seed=0, batch=BATCH, seq=SEQ), config)
        for i in range(batches)
    ]
    return statistics.fmean(float(loss) for loss in xf.device_get(losses))


def sample(
    params: model.Params, tokenizer: Tokenizer, prompt: str, config: model.Config, seed: int
) -> str:
    """The prompt, continued to the length of the window."""
    ids = tokenizer.encode(prompt).ids[: SEQ // 2]
    window = torch.tensor(ids + [0] * (SEQ - len(ids)))
    gumbel = np.random.default_rng(seed).gumbel(size=(SEQ - len(ids), config.vocab))
    noise = torch.from_numpy(TEMPERATURE * gumbel).float()
    tokens = train.generate(params, window, torch.tensor(len(ids)), noise, config=config)
    return tokenizer.decode(xf.device_get(tokens).tolist())


def save_plot(losses: Sequence[float], path: Path) -> None:
    """Write the loss curve as a PNG."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot(losses, linewidth=1)
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


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
