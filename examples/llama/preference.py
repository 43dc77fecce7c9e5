"""Training on pairs of answers, one of them preferred, without a reward model.

A row holds whole pairs: its odd segments are a prompt with the preferred answer, each followed by
the same prompt with the other answer. Only answers have targets.

Source: Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward
Model, 2023.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from . import model
from .model import Batch, Config, Params
from .plan import Plan


def loss(
    params: Params, reference: Params, batch: Batch, config: Config, plan: Plan, beta: float
) -> Float[Tensor, ""]:
    """The sum over all pairs of `-log sigmoid(beta * margin)`.

    The margin is the difference between the preferred answer and the other one in the log ratio of
    an answer's probabilities under `params` and under `reference`.

    Args:
        params: the weights.
        reference: the weights to compare with, which get no gradient.
        batch: rows of pairs.
        config: the sizes.
        plan: how the model is computed.
        beta: the strength of the penalty for moving away from the reference.
    """
    known = model.losses(params, batch, config, plan)
    before = model.losses(reference, batch, config, plan).detach()
    margins, real = _margins(before - known, batch)
    return -F.logsigmoid(beta * margins).masked_fill(~real, 0.0).sum()


def pair_count(batch: Batch) -> Float[Tensor, ""]:
    """How many pairs a batch has; at least 1."""
    return (_segments(batch).amax(1) // 2).sum().clamp(min=1).float()


def _margins(
    ratios: Float[Tensor, "batch seq"], batch: Batch
) -> tuple[Float[Tensor, "batch pairs"], Bool[Tensor, "batch pairs"]]:
    """The margin of each pair of a row, and which pairs exist.

    `ratios` has one entry for each target, and 0 where there is none.
    """
    segments = _segments(batch)
    rows, seq = segments.shape
    most = seq // 4 + 1  # A prompt with its answer has two tokens or more.
    pair = (segments - 1).clamp(min=0) // 2
    signed = torch.where(segments % 2 == 1, ratios, -ratios)
    margins = ratios.new_zeros((rows, most)).scatter_add(1, pair.long(), signed)
    number = torch.arange(most, device=segments.device)
    return margins, number < segments.amax(1, keepdim=True) // 2


def _segments(batch: Batch) -> Tensor:
    if batch.segments is None:
        raise ValueError("a batch of pairs has no segments: give the segment of each token")
    return batch.segments
