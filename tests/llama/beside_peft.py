"""Trains the example's adapters and PEFT's side by side."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F

import xfunc as xf
from examples.llama import model, train
from examples.llama.train.train_config import Recipe


def assert_equal(a: Any, b: Any) -> None:
    """Bit for bit."""
    xf.tree.map(
        lambda x, y: torch.testing.assert_close(x, y, rtol=0.0, atol=0.0),
        xf.device_get(a),
        xf.device_get(b),
    )


def train_beside(
    theirs: Any,
    state: train.State,
    base: model.Params | None,
    recipe: Recipe,
    rows: Iterable[torch.Tensor],
    lr: float,
) -> tuple[train.State, list[float]]:
    """Train PEFT's model and ours, by AdamW, on the same rows of tokens.

    Each loss of ours must be theirs. Returns our state, and the losses.
    """
    learned = [weight for weight in theirs.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=lr, betas=(0.9, 0.95), weight_decay=0)
    losses = []
    for tokens in rows:
        batch = model.batch_of(tokens)
        state, metrics = train.train_step(state, batch, base, recipe=recipe)
        logits = theirs(batch.tokens).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(metrics.loss.cpu(), loss.detach(), rtol=0.0, atol=1e-4)
        losses.append(loss.item())
    return state, losses
