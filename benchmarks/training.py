"""Training steps of the Llama example on one core, against plain torch, by CPU time.

The peers are one torch function, eager and compiled, with fused attention and fused AdamW.
"""

from __future__ import annotations

import functools
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf
from examples.llama import allocation, config, demo, model, train
from examples.llama.model import Batch, Config

ROUNDS = {"demo-1m": 60, "small-11m": 6}


def main() -> None:
    """Print tokens per second of one core, in a process bound to that core from its start.

    XLA counts the cores when xfunc is imported: threads for more of them would wait for each other.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        subprocess.run([sys.executable, "-m", "benchmarks.training"], check=True)
    finally:
        os.sched_setaffinity(0, cores)


def measure() -> None:
    """Print the medians of the turns, which alternate, and of the ratios in each round."""
    allocation.keep_memory()
    torch.set_num_threads(1)
    print("| tokens per CPU-second | xfunc | eager torch | torch.compile | / eager | / compile |")
    print("|---|---|---|---|---|---|")
    runs = {"demo-1m": config.Run(train=demo.recipe(1000)), "small-11m": config.read("small-11m")}
    for name, run in runs.items():
        ours, *peers = _costs(run, ROUNDS[name])
        tokens = run.data.batch * run.data.seq
        rates = (tokens / statistics.median(cost) for cost in (ours, *peers))
        ratios = (statistics.median(map(operator.truediv, cost, ours)) for cost in peers)
        cells = [f"{rate:,.0f}" for rate in rates] + [f"{ratio:.2f}" for ratio in ratios]
        print("|", " | ".join([name, *cells]), "|", flush=True)


def _costs(run: config.Run, rounds: int) -> list[list[float]]:
    """Seconds of each step: ours, eager torch's and those of `torch.compile`."""
    recipe, rows, seq = run.train, run.data.batch, run.data.seq
    batch = _batch(recipe.model, rows, seq)
    params = xf.device_get(model.init(recipe.model))
    contenders = [_ours(recipe, batch)]
    for compiled in (False, True):
        contenders.append(_theirs(recipe, xf.tree.map(Tensor.clone, params), batch, compiled))
    first = [float(step()) for step in contenders]
    assert max(first) - min(first) < 1e-3, f"the losses differ: {first}"
    for step in contenders:
        step()
    costs: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for step, cost in zip(contenders, costs, strict=True):
            start = time.process_time()
            step()
            cost.append(time.process_time() - start)
    return costs


def _batch(c: Config, rows: int, seq: int) -> Batch:
    tokens = torch.randint(c.vocab, (rows, seq + 1), generator=torch.Generator().manual_seed(0))
    ends = torch.arange(seq) * 3 // seq  # three documents a row
    batch = model.batch_of(tokens.to(torch.int32))
    return batch._replace(segments=(1 + ends).to(torch.int32).expand(rows, seq).contiguous())


def _ours(recipe: train.Recipe, batch: Batch) -> Callable[[], Tensor]:
    state, there = train.init(recipe), xf.device_put(batch)

    def step() -> Tensor:
        nonlocal state
        state, metrics = train.train_step(state, there, recipe=recipe)
        return xf.device_get(metrics.loss)

    return step


def _theirs(
    recipe: train.Recipe, params: Any, batch: Batch, compiled: bool
) -> Callable[[], Tensor]:
    tokens, targets = batch.tokens.long(), batch.targets.long()
    assert batch.segments is not None
    seen = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    mask = (seen & (batch.segments[:, None] == batch.segments[:, :, None]))[:, None]
    step = plain_step(recipe, params, torch.compile(plain_loss) if compiled else plain_loss)
    return functools.partial(step, tokens, targets, mask)


def plain_step(
    recipe: train.Recipe, params: Any, forward: Callable[..., Tensor]
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """A step as one would write it in torch, of tokens, targets and a mask of what is seen."""
    leaves = [p.requires_grad_() for p in xf.tree.leaves(params)]
    adamw = torch.optim.AdamW(
        leaves, recipe.peak_lr, (recipe.beta1, recipe.beta2), fused=True, weight_decay=0.1
    )

    def step(tokens: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
        loss = forward(params, tokens, targets, mask, c=recipe.model)
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(leaves, recipe.clip)
        adamw.step()
        return loss.detach()

    return step


def plain_loss(
    params: Any, tokens: Tensor, targets: Tensor, mask: Tensor | None, *, c: Config
) -> Tensor:
    """The loss of the example's model, as one would write it in torch; no mask: causal."""
    angles = model.rotary(torch.arange(tokens.shape[1]), c)
    x = F.embedding(tokens, params["embed"])
    layers = {name: stack.unbind() for name, stack in params["layers"].items()}
    for i in range(c.layers):
        w = {name: stack[i] for name, stack in layers.items()}
        x = x + _attention(_norm(x, w["attn_norm"], c), w, angles, mask, c)
        x = x + model.mlp(_norm(x, w["mlp_norm"], c), w)
    x = _norm(x, params["norm"], c)
    logits = F.linear(x, params["embed" if c.tied else "head"])
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _norm(x: Tensor, weight: Tensor, c: Config) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, c.norm_eps)


def _attention(x: Tensor, w: Any, angles: Any, mask: Tensor | None, c: Config) -> Tensor:
    q, k, v = (
        F.linear(x, w[name]).unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
        for name in ("wq", "wk", "wv")
    )
    q, k = model.rotate(q, angles), model.rotate(k, angles)
    mixed = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=mask is None, enable_gqa=c.heads != c.kv_heads
    )
    return F.linear(mixed.transpose(1, 2).flatten(2), w["wo"])


if __name__ == "__main__":
    measure()
