"""``torch.ctc_loss`` in traced code: a loop over time, by `scan`.

Source: Graves et al., "Connectionist Temporal Classification", 2006.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from xfunc.torchlib.replacements import REPLACEMENTS
from xfunc.trace import tracing
from xfunc.transforms.scan.scan import scan

Tensor = torch.Tensor
Lengths = Tensor | Sequence[int]
_INF = float("inf")


def _log_sum_exp(terms: Sequence[Tensor]) -> Tensor:
    """Over several tensors; where all are -inf, its gradient is zero."""
    x = torch.stack(tuple(terms))
    largest = x.detach().amax(0)
    largest = torch.where(largest == -_INF, 0, largest)
    total = (x - largest).exp().sum(0)
    found = torch.where(total > 0, total, 1).log() + largest
    return torch.where(total > 0, found, -_INF)


def _rows(targets: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Targets that stand one after the other, as rows."""
    first = lengths.cumsum(0) - lengths
    at = first[:, None] + torch.arange(longest, device=targets.device)
    return targets[at.clamp(max=max(targets.shape[0] - 1, 0))] if len(targets) else at


def _losses(
    log_probs: Tensor, targets: Tensor, times: Tensor, lengths: Tensor, blank: int
) -> Tensor:
    """The losses ``[batch]`` of log-probabilities ``[time, batch, class]`` and rows of targets."""
    steps, batch, _ = log_probs.shape
    longest = targets.shape[1]
    # The states: blank, first label, blank, second label, ..., blank.
    labels = torch.full((batch, 2 * longest + 1), blank, device=targets.device)
    labels[:, 1::2] = targets
    skips = torch.zeros_like(labels, dtype=torch.bool)
    skips[:, 3::2] = targets[:, 1:] != targets[:, :-1]
    skips &= labels != blank
    scores = log_probs.gather(2, labels.expand(steps, *labels.shape))

    def step(alpha: Tensor, at: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        now, score = at
        before = F.pad(alpha, (2, 0), value=-_INF)
        skipped = torch.where(skips, before[:, :-2], -_INF)
        new = _log_sum_exp([alpha, before[:, 1:-1], skipped]) + score
        return torch.where((now < times)[:, None], new, alpha), None

    alpha = torch.full(labels.shape, -_INF, dtype=scores.dtype, device=scores.device)
    alpha[:, 0] = 0
    now = torch.arange(steps, device=times.device)
    alpha, _ = scan(step, alpha, (now, scores))
    last = alpha.gather(1, 2 * lengths[:, None])
    label = alpha.gather(1, (2 * lengths[:, None] - 1).clamp(min=0))
    label = torch.where(lengths[:, None] > 0, label, -_INF)
    # torch's gradient is that of the loss before `log_softmax`.
    seen = (now[:, None] < times)[..., None]
    mass = torch.where(seen, log_probs, -_INF).exp().sum((0, 2))
    return mass - mass.detach() - _log_sum_exp([last, label])[:, 0]


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """``torch.nn.functional.ctc_loss``. The gradient of an infinite loss is finite."""
    trace = tracing.current()
    if trace is None:
        plain: Any = F.ctc_loss
        lengths = (input_lengths, target_lengths)
        return plain(log_probs, targets, *lengths, blank, reduction, zero_infinity)
    with trace.mode:
        is_one = log_probs.ndim == 2
        if is_one:
            log_probs, targets = log_probs[:, None], targets[None]
        if not 0 <= blank < log_probs.shape[2]:
            raise RuntimeError("blank must be in label range")
        longest = targets.shape[-1]
        if targets.ndim == 1 and not isinstance(target_lengths, Tensor):
            longest = max(target_lengths, default=0)
        times, lengths = (
            torch.as_tensor(n, device=log_probs.device).long().reshape(-1)
            for n in (input_lengths, target_lengths)
        )
        rows = targets.long()
        rows = _rows(rows, lengths, longest) if targets.ndim == 1 else rows
        losses = _losses(log_probs, rows, times, lengths, blank)
        if zero_infinity:
            losses = torch.where(losses == _INF, 0, losses)
        match reduction:
            case "mean":
                return (losses / lengths.clamp(min=1)).mean()
            case "sum":
                return losses.sum()
            case "none":
                return losses[0] if is_one else losses
            case _:
                raise ValueError(f"{reduction} is not a valid value for reduction")


_REDUCTIONS = ("none", "mean", "sum")  # by torch's numbers


def _numbered(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """``torch.ctc_loss``."""
    by = _REDUCTIONS[reduction]
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, by, zero_infinity)


def install() -> None:
    """Let traced code call these in place of torch's functions."""
    REPLACEMENTS[F.ctc_loss] = ctc_loss
    REPLACEMENTS[torch.ctc_loss] = _numbered
