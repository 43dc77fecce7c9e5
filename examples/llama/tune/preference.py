"""Training on answers that are preferred or not, in pairs or alone, without a reward model.

A row holds whole pairs: its odd segments are a prompt with the preferred answer, each followed by
the same prompt with the other answer. For KTO a pair is a prompt with its answer, and with that of
another record: segments 1 and 2 of each four if the answer is desirable, and 3 and 4 if not.

Sources: Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward
Model, 2023; Hong et al., ORPO: Monolithic Preference Optimization without Reference Model, 2024;
Ethayarajh et al., KTO: Model Alignment as Prospect Theoretic Optimization, 2024.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from .. import model
from ..model import IGNORE, Batch, Config, Params
from ..model.experts import Routed
from ..model.plan import Plan


class Compared(NamedTuple):
    """Sums over the pairs of a batch, or over its answers, for KTO.

    A margin says by how much the implicit reward of the preferred answer exceeds the other's; or
    that of a desirable answer what `kto` compares it with, or falls below it otherwise.
    """

    loss: Float[Tensor, ""]
    margin: Float[Tensor, ""]
    correct: Float[Tensor, ""]  # 1 where the margin is above 0
    routed: Routed | None  # the statistics of the model's routers, if it has experts
    kl: Float[Tensor, ""] | None = None  # what `kto` compares rewards with, without `beta`


def dpo(
    params: Params, reference: Params, batch: Batch, config: Config, plan: Plan, beta: float
) -> Compared:
    """`-log sigmoid(margin)` of all pairs.

    The implicit reward of an answer is `beta` times the log ratio of its probabilities under
    `params` and under `reference`, which gets no gradient.
    """
    ratios, routed = _log_ratios(params, reference, batch, config, plan)
    best, other = _of_pairs(ratios, batch).unbind(-1)
    margins = beta * (best - other)
    losses = -F.logsigmoid(margins).masked_fill(~_is_pair(batch), 0.0)
    return _summed(losses, margins, routed)


def orpo(params: Params, batch: Batch, config: Config, plan: Plan, weight: float) -> Compared:
    """The preferred answer's mean loss per token less `weight * log sigmoid(margin)`, of all pairs.

    The implicit reward of an answer is the logarithm of its odds, `p / (1 - p)`, where `p` is the
    geometric mean of its tokens' probabilities.
    """
    known, routed = model.losses_and_routed(params, batch, config, plan)
    sizes = _of_pairs((batch.targets != IGNORE).to(known.dtype), batch).clamp(min=1.0)
    best, other = (_of_pairs(-known, batch) / sizes).unbind(-1)
    margins = log_odds(best) - log_odds(other)
    losses = (-best - weight * F.logsigmoid(margins)).masked_fill(~_is_pair(batch), 0.0)
    return _summed(losses, margins, routed)


def kto(
    params: Params,
    reference: Params,
    batch: Batch,
    config: Config,
    plan: Plan,
    beta: float,
    weights: tuple[float, float],
) -> Compared:
    """`weight * (1 - sigmoid(margin))` of all answers.

    The implicit reward of an answer is that of `dpo`. It is compared with an estimate of the KL
    divergence of the weights from the reference: the mean log ratio of answers to other prompts,
    or 0 if that is more, which gets no gradient. The weights are those of desirable answers and of
    others.
    """
    ratios, routed = _log_ratios(params, reference, batch, config, plan)
    sizes = _of_pairs((batch.targets != IGNORE).to(ratios.dtype), batch, 4)
    good, bad = ((sizes[..., i] > 0).to(ratios.dtype) for i in (0, 2))
    count = answer_count(batch)
    own, others = _of_pairs(ratios, batch, 4).unflatten(-1, (2, 2)).sum(-2).unbind(-1)
    kl = (others.detach().sum() / count).clamp(min=0.0)
    margins = beta * (good - bad) * (own - kl)
    losses = (weights[0] * good + weights[1] * bad) * torch.sigmoid(-margins)
    return _summed(losses, margins, routed)._replace(kl=kl * count)


def _summed(losses: Tensor, margins: Tensor, routed: Routed | None) -> Compared:
    """The sums over pairs, or answers; margins are 0 where there is none."""
    correct = (margins > 0).to(margins.dtype)
    return Compared(losses.sum(), margins.detach().sum(), correct.sum(), routed)


def answer_count(batch: Batch) -> Float[Tensor, ""]:
    """How many answers with a label a batch has; at least 1."""
    return ((_segments(batch).amax(1) + 3) // 4).sum().clamp(min=1).float()


def pair_count(batch: Batch) -> Float[Tensor, ""]:
    """How many pairs a batch has; at least 1."""
    return (_segments(batch).amax(1) // 2).sum().clamp(min=1).float()


def log_odds(p: Tensor) -> Tensor:
    """Of a probability, from its logarithm; finite where it is 1, as where there is no pair."""
    p = p.clamp(max=-torch.finfo(p.dtype).eps)
    return p - (-torch.expm1(p)).log()


def _log_ratios(
    params: Params, reference: Params, batch: Batch, config: Config, plan: Plan
) -> tuple[Float[Tensor, "batch seq"], Routed | None]:
    """The log ratio of each target's probabilities under two models, and what routers say."""
    known, routed = model.losses_and_routed(params, batch, config, plan)
    before, _ = model.losses_and_routed(reference, batch, config, plan)
    return before.detach() - known, routed


def _of_pairs(
    values: Float[Tensor, "batch seq"], batch: Batch, size: int = 2
) -> Float[Tensor, "batch pairs {size}"]:
    """The sums over the preferred and the other answer of each pair of a row; 0 without a pair.

    A pair has two of `size` segments.
    """
    segments = _segments(batch)
    rows, seq = segments.shape
    most = size * (seq // 4 + 1)  # A prompt with its answer has two tokens or more.
    found = values.new_zeros((rows, most))
    found = found.scatter_add(1, (segments - 1).clamp(min=0).long(), values)
    return found.unflatten(1, (-1, size))


def _is_pair(batch: Batch) -> Bool[Tensor, "batch pairs"]:
    segments = _segments(batch)
    number = torch.arange(segments.shape[1] // 4 + 1, device=segments.device)
    return number < segments.amax(1, keepdim=True) // 2


def _segments(batch: Batch) -> Tensor:
    if batch.segments is None:
        raise ValueError("a batch of pairs has no segments: give the segment of each token")
    return batch.segments
