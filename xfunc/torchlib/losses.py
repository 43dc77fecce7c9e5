"""Losses whose derivatives in torch are wrong or missing where the loss is plain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """The losses ("none"), their mean ("mean") or their sum ("sum")."""
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: Any = None,
    eps: float = 1e-8,
    reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """``F.poisson_nll_loss``, which masks Stirling's term of a target of 0 after its logarithm."""
    old = size_average is not None or reduce is not None
    if not full or old or reduction not in ("none", "mean", "sum"):
        return F.poisson_nll_loss(
            input, target, log_input, full, size_average, eps, reduce, reduction
        )
    loss = F.poisson_nll_loss(input, target, log_input, False, eps=eps, reduction="none")
    is_small = target <= 1
    large = torch.where(is_small, 1, target)
    term = large * large.log() - large + 0.5 * torch.log(2 * math.pi * large)
    loss = (loss + torch.where(is_small, 0, term)).to(loss.dtype)
    return reduced(loss, reduction)


def linear_cross_entropy(*args: Any, options: object = None, **kwargs: Any) -> Tensor:
    """``F.linear_cross_entropy`` in one chunk.

    Chunks compute the gradients of what requires them by itself, which an example in vmap does not,
    and have no derivatives but gradients.
    """
    return F.linear_cross_entropy(*args, **kwargs)  # type: ignore[attr-defined]


LOSSES: dict[object, Callable[..., Tensor]] = {F.poisson_nll_loss: poisson_nll_loss}
"""The replacement for each of these torch functions."""
if hasattr(F, "linear_cross_entropy"):  # torch 2.13
    LOSSES[F.linear_cross_entropy] = linear_cross_entropy
