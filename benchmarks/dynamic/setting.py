"""The model and the documents that the parts share."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

import xfunc as xf
from examples.llama import model, train
from examples.llama.data.corpus import Part
from examples.llama.data.length_batches import ByLength
from examples.llama.data.packing import Stream
from examples.llama.model import Batch
from examples.llama.model.plan import Plan
from examples.llama.train.train_config import Recipe
from xfunc.hlo import Module

CAP = 1024  # tokens of the longest document
CONFIG = model.Config(512, hidden=128, intermediate=352, layers=4, heads=4, kv_heads=2)


def recipe(policy: str = "full") -> Recipe:
    """What is trained, with a checkpoint policy of the example."""
    return Recipe(CONFIG, steps=100, plan=Plan(policy, attention="dense", loss_chunk=4096))


def module(env: Any, policy: str = "full") -> Module:
    """The train step at given sizes."""
    tokens: Any = xf.ShapeDtypeStruct((env["B"], env["S"]), torch.int64)
    return lowered(model.Batch(tokens, tokens), recipe(policy)).module


def lowered(batch: Any, made: Recipe) -> Any:
    """The train step for a batch."""
    weights = model.shapes(made.model, torch.float32)
    state = xf.eval_shape(lambda params: train.start(made, params), weights)
    return train.train_step.lower(state, batch, recipe=made)


def lengths(n: int, seed: int = 0) -> list[int]:
    """Lengths as in instruction data: lognormal, median 96, 99th percentile 512, at most `CAP`."""
    draw = random.Random(seed)
    return [min(CAP, max(2, round(draw.lognormvariate(4.564, 0.72)))) for _ in range(n)]


def documents(n: int) -> Part:
    """Documents of random tokens."""
    ends = np.cumsum(lengths(n))
    tokens = np.random.default_rng(0).integers(CONFIG.vocab, size=int(ends[-1]))
    return Part(tokens.astype(np.uint16), ends)


def by_length(part: Part, rows: int, take: int) -> list[Batch]:
    """Some batches of an epoch of rows sorted by length within windows, spread over all widths."""
    found = ByLength(part, CAP, rows, seed=0)
    batches = [
        _batch(*found.batch(0, np.arange(k, k + rows)))
        for k in range(0, found.rows - rows + 1, rows)
    ]
    batches.sort(key=lambda b: b.tokens.shape[1])
    step = len(batches) // take
    return batches[step // 2 :: step][:take]


def packed(part: Part, rows: int, take: int) -> list[Batch]:
    """Some batches of packed rows, with segment ids."""
    found = Stream(part, CAP, seed=0)
    return [_batch(*found.batch(0, np.arange(k * rows, (k + 1) * rows))) for k in range(take)]


def widened(batch: Batch, width: int) -> Batch:
    """A batch padded to a width."""
    more = width - batch.tokens.shape[1]
    pad = torch.nn.functional.pad
    return Batch(pad(batch.tokens, (0, more)), pad(batch.targets, (0, more), value=model.IGNORE))


def _batch(*arrays: np.ndarray) -> Batch:
    return Batch(*map(torch.from_numpy, arrays))
