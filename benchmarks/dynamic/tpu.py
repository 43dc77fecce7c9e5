"""The masked step compiled by libtpu for one v6e chip, next to the step at the bucket's shape."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.model import Batch
from examples.llama.model.plan import Plan
from examples.llama.train.train_config import Recipe

ROWS, SEQ, LAYERS, TARGET = 1, 2048, 2, "tpu:v6e:1x1"


def main() -> None:
    """Print the lines."""
    config = dataclasses.replace(model.PUBLISHED["llama3.1-8b"], layers=LAYERS)
    # The loss in one piece: how many pieces there are must not depend on the length.
    plan = Plan("full", attention="dense", loss_chunk=SEQ)
    recipe = Recipe(config, steps=100, plan=plan, precision="mixed")
    weights = model.shapes(config, torch.float32)
    state = xf.eval_shape(lambda params: train.start(recipe, params), weights)

    def lowered(width: Any) -> Any:
        tokens: Any = xf.ShapeDtypeStruct((ROWS, width), torch.int32)
        if isinstance(width, int):
            return train.train_step.lower(state, Batch(tokens, tokens), recipe=recipe)
        step = train.dynamic_step(recipe, SEQ, (SEQ,), None)
        return step.lower(state, Batch(tokens, tokens), None)

    plain = lowered(SEQ).compile(TARGET)
    masked = lowered(xf.Dim("S", max=SEQ)).compile(TARGET)
    print(f"{LAYERS} layers of Llama 3.1 8B, its embeddings and head, AdamW, {SEQ} tokens.\n")
    print("| | masked | at the bucket's shape | ratio |\n|---|---|---|---|")
    ours, theirs = masked.memory_analysis(), plain.memory_analysis()
    held, fixed = ours.peak_memory_in_bytes / 2**30, theirs.peak_memory_in_bytes / 2**30
    print(f"| HBM, GiB | {held:.2f} | {fixed:.2f} | {held / fixed:.3f} |")
    for what in ("flops", "bytes accessed"):
        n, m = (c.cost_analysis()[what] for c in (masked, plain))
        print(f"| {what} | {n:.3e} | {m:.3e} | {n / m:.3f} |")
