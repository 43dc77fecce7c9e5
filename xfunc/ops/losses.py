"""Losses over class labels.

torch_xla 2.9 crashes the process on a single example, and returns no total weight: its own
backward pass does without, but torch.func's vmap rule divides by it.
"""

from __future__ import annotations

import torch

from xfunc.ops.registry import kernel, original

Tensor = torch.Tensor


def _total(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> Tensor:
    """The total weight of the examples that are not ignored."""
    if reduction == 0:
        return x.new_zeros(())
    counts = target != ignore_index
    if weight is None:
        return counts.sum().to(x.dtype)
    each = weight.index_select(0, torch.where(counts, target, 0).reshape(-1))
    return torch.where(counts.reshape(-1), each, 0).sum()


@kernel("nll_loss2d_forward")
def nll_loss2d(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    found, _ = original("nll_loss2d_forward")(x, target, weight, reduction, ignore_index)
    return found, _total(x, target, weight, reduction, ignore_index)


@kernel("nll_loss_forward")
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    inner, total = original("nll_loss_forward"), _total(x, target, weight, reduction, ignore_index)
    if x.ndim > 1:
        return inner(x, target, weight, reduction, ignore_index)[0], total
    found, _ = inner(x[None], target.reshape(1), weight, reduction, ignore_index)
    return found.reshape(()), total


@kernel("nll_loss_backward")
def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total: Tensor,
) -> Tensor:
    inner = original("nll_loss_backward")
    if x.ndim > 1:
        return inner(grad, x, target, weight, reduction, ignore_index, total)
    if reduction == 0:
        grad = grad.reshape(1)
    return inner(grad, x[None], target.reshape(1), weight, reduction, ignore_index, total)[0]
