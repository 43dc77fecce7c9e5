"""Training on pairs of answers, one of them preferred, without a reward model.

A row holds whole pairs: its odd segments are a prompt with the preferred answer, each followed by
the same prompt with the other answer. Only answers have targets.

Source: Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward
Model, 2023.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from . import model
from .experts import Routed
from .model import Batch, Config, Params
from .plan import Plan


class Compared(NamedTuple):
    """Sums over the pairs of a batch.

    Attributes:
        loss: that is minimized.
        margin: by how much the implicit reward of the preferred answer exceeds the other's.
        correct: 1 where it does.
        routed: the statistics of the model's routers, if it has experts.
    """

    loss: Float[Tensor, ""]
    margin: Float[Tensor, ""]
    correct: Float[Tensor, ""]
    routed: Routed | None


def dpo(
    params: Params, reference: Params, batch: Batch, config: Config, plan: Plan, beta: float
) -> Compared:
    """`-log sigmoid(margin)` of all pairs.

    The implicit reward of an answer is `beta` times the log ratio of its probabilities under
    `params` and under `reference`.

    Args:
        params: the weights.
        reference: the weights to compare with, which get no gradient.
        batch: rows of pairs.
        config: the sizes.
        plan: how the model is computed.
        beta: the strength of the penalty for moving away from the reference.
    """
    known, routed = model.losses_and_routed(params, batch, config, plan)
    before = model.losses(reference, batch, config, plan).detach()
    differences, real = _differences(before - known, batch)
    margins = beta * differences
    losses = -F.logsigmoid(margins).masked_fill(~real, 0.0)
    correct = (margins > 0).to(margins.dtype)  # 0 where there is no pair, as margins are.
    return Compared(losses.sum(), margins.detach().sum(), correct.sum(), routed)


def pair_count(batch: Batch) -> Float[Tensor, ""]:
    """How many pairs a batch has; at least 1."""
    return (_segments(batch).amax(1) // 2).sum().clamp(min=1).float()


def _differences(
    values: Float[Tensor, "batch seq"], batch: Batch
) -> tuple[Float[Tensor, "batch pairs"], Bool[Tensor, "batch pairs"]]:
    """The sum over the preferred answer less that over the other, of each pair of a row.

    Also which pairs exist. `values` has one entry for each target, and 0 where there is none.
    """
    segments = _segments(batch)
    rows, seq = segments.shape
    most = seq // 4 + 1  # A prompt with its answer has two tokens or more.
    pair = (segments - 1).clamp(min=0) // 2
    signed = torch.where(segments % 2 == 1, values, -values)
    found = values.new_zeros((rows, most)).scatter_add(1, pair.long(), signed)
    number = torch.arange(most, device=segments.device)
    return found, number < segments.amax(1, keepdim=True) // 2


def _segments(batch: Batch) -> Tensor:
    if batch.segments is None:
        raise ValueError("a batch of pairs has no segments: give the segment of each token")
    return batch.segments
