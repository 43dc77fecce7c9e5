"""Training steps of the Llama example on one core, against plain torch, by CPU time.

The peers are one torch function, eager and compiled, with fused attention and fused AdamW.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf
from examples.llama import config, demo, model, train
from examples.llama.model import Batch, Config
from examples.llama.model.linear import Adapted, linear
from examples.llama.train import allocation
from examples.llama.train.train_config import Recipe
from examples.llama.tune import lora

ROUNDS = {"small-11m": 6}
DOCUMENTS = 3  # in a packed row
LENGTHS = (40, 64, 90, 128)  # of the rows of batches with dynamic shapes


def main() -> None:
    """Print tokens per second of one core."""
    on_one_core("benchmarks.training")


def on_one_core(module: str) -> None:
    """Run a module in a process that is bound to one core from its start.

    XLA counts the cores when xfunc is imported: threads for more of them would wait for each other.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        subprocess.run([sys.executable, "-m", module], check=True)
    finally:
        os.sched_setaffinity(0, cores)


def measure(names: Sequence[str]) -> None:
    """Print the medians of the turns, which alternate, and of the ratios in each round.

    Args:
        names: of the configurations; none: all.
    """
    allocation.keep_memory()
    torch.set_num_threads(1)
    print("| tokens per CPU-second | xfunc | eager torch | torch.compile | / eager | / compile |")
    print("|---|---|---|---|---|---|")
    for name, case in cases().items():
        if names and name not in names:
            continue
        ours, *peers = _costs(case, ROUNDS.get(name, 60))
        targets = sum(int((b.targets != model.IGNORE).sum()) for b in case.batches)
        rates = (targets / statistics.median(cost) for cost in (ours, *peers))
        ratios = (statistics.median(map(operator.truediv, cost, ours)) for cost in peers)
        cells = [f"{rate:,.0f}" for rate in rates] + [f"{ratio:.2f}" for ratio in ratios]
        print("|", " | ".join([name, *cells]), "|", flush=True)


class Case(NamedTuple):
    """What is trained.

    Attributes:
        recipe: the recipe.
        batches: what each round trains on. They have several lengths: the shapes are dynamic.
    """

    recipe: Recipe
    batches: Sequence[Batch]


def cases() -> dict[str, Case]:
    """The configurations by name."""
    small, larger = demo.recipe(1000), config.read("small-11m")
    tune = lora.Tune(lora=("layers.w*",), rank=16)
    packed = _packed(small.model, 8, 128)
    lengths = [_rows(small.model, 8, length) for length in LENGTHS]
    return {
        "demo-1m": Case(small, [packed]),
        "demo-1m, LoRA": Case(dataclasses.replace(small, tune=tune), [packed]),
        "demo-1m, dynamic": Case(small, lengths),
        "small-11m": Case(larger.train, [_packed(larger.train.model, 8, 256)]),
    }


def _costs(case: Case, rounds: int) -> list[list[float]]:
    """Seconds of each round: ours, eager torch's and those of `torch.compile`."""
    params = xf.device_get(model.init(case.recipe.model))
    contenders = [_ours(case, params)]
    for compiled in (False, True):
        contenders.append(_theirs(case, xf.tree.map(Tensor.clone, params), compiled))
    first = [float(run()) for run in contenders]
    assert max(first) - min(first) < 1e-3, f"the losses differ: {first}"
    for run in contenders:
        run()
    costs: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds // len(case.batches)):
        for run, cost in zip(contenders, costs, strict=True):
            start = time.process_time()
            run()
            cost.append(time.process_time() - start)
    return costs


def _rows(c: Config, rows: int, seq: int) -> Batch:
    tokens = torch.randint(c.vocab, (rows, seq + 1), generator=torch.Generator().manual_seed(0))
    return model.batch_of(tokens.to(torch.int32))


def _packed(c: Config, rows: int, seq: int) -> Batch:
    ends = torch.arange(seq) * DOCUMENTS // seq
    segments = (1 + ends).to(torch.int32).expand(rows, seq).contiguous()
    return _rows(c, rows, seq)._replace(segments=segments)


def _ours(case: Case, params: Any) -> Callable[[], Tensor]:
    """A round: a step on each batch. It returns the first loss, which no update has changed yet."""
    recipe = case.recipe
    trained, base = _divided(params, recipe)
    state, base = train.start(recipe, trained), xf.device_put(base)
    there = [xf.device_put(batch) for batch in case.batches]
    step = functools.partial(train.train_step, recipe=recipe)
    if len(there) > 1:
        step = train.dynamic_step(recipe, max(LENGTHS), LENGTHS, None)

    def run() -> Tensor:
        nonlocal state
        losses = []
        for batch in there:
            state, metrics = step(state, batch, base)
            losses.append(xf.device_get(metrics.loss))
        return losses[0]

    return run


def _divided(params: Any, recipe: Recipe) -> tuple[Any, Any]:
    """What is trained, and what is not: the same adapters for everybody."""
    adapt = lora.adapters(recipe.model, recipe.tune, xf.random.key(0))

    def made(name: str, leaf: Any) -> lora.Adapter:
        return xf.device_get(adapt(name, leaf))

    found = lora.trained(params, recipe.model, recipe.tune, made)
    return found, lora.frozen(params, recipe.model, recipe.tune)


def _theirs(case: Case, params: Any, compiled: bool) -> Callable[[], Tensor]:
    recipe, inputs = case.recipe, [_plain_inputs(batch) for batch in case.batches]
    trained, base = _divided(params, recipe)

    def loss(trained: Any, *given: Any, c: Config) -> Tensor:
        return plain_loss(lora.join(trained, base, recipe.tune), *given, c=c)

    dynamic = len(inputs) > 1
    forward = torch.compile(loss, dynamic=dynamic, fullgraph=True) if compiled else loss
    step = plain_step(recipe, trained, forward)

    def run() -> Tensor:
        losses = [step(*given) for given in inputs]
        return losses[0]

    return run


def _plain_inputs(batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
    tokens, targets = batch.tokens.long(), batch.targets.long()
    if batch.segments is None:
        return tokens, targets, None
    seen = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    return (
        tokens,
        targets,
        (seen & (batch.segments[:, None] == batch.segments[:, :, None]))[:, None],
    )


def plain_step(
    recipe: Recipe, params: Any, forward: Callable[..., Tensor]
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
    layers = {name: _unbound(stack) for name, stack in params["layers"].items()}
    for i in range(c.layers):
        w = {name: stack[i] for name, stack in layers.items()}
        x = x + _attention(_norm(x, w["attn_norm"], c), w, angles, mask, c)
        x = x + model.mlp(_norm(x, w["mlp_norm"], c), w)
    x = _norm(x, params["norm"], c)
    logits = F.linear(x, params["embed" if c.tied else "head"])
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _unbound(stack: Tensor | Adapted) -> Sequence[Any]:
    if isinstance(stack, Tensor):
        return stack.unbind()
    assert isinstance(stack.base, Tensor)
    assert stack.down is not None
    parts = stack.base.unbind(), stack.down.unbind(), stack.up.unbind()
    return [Adapted(*part) for part in zip(*parts, strict=True)]


def _norm(x: Tensor, weight: Tensor, c: Config) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, c.norm_eps)


def _attention(x: Tensor, w: Any, angles: Any, mask: Tensor | None, c: Config) -> Tensor:
    q, k, v = (
        linear(x, w[name]).unflatten(-1, (-1, c.head_dim)).transpose(1, 2)
        for name in ("wq", "wk", "wv")
    )
    q, k = model.rotate(q, angles), model.rotate(k, angles)
    grouped = False
    if c.heads != c.kv_heads:  # With dynamic=True, it is a SymBool, which attention does not take.
        grouped = True
    mixed = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=mask is None, enable_gqa=grouped
    )
    return linear(mixed.transpose(1, 2).flatten(2), w["wo"])


if __name__ == "__main__":
    measure(sys.argv[1:])
