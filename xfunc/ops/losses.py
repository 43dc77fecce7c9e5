"""Losses of a single example, over which torch_xla 2.9 ends the process."""

from __future__ import annotations

import torch

from xfunc.ops.registry import kernel, original

Tensor = torch.Tensor


@kernel("nll_loss_forward")
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    inner = original("nll_loss_forward")
    if x.ndim > 1:
        return inner(x, target, weight, reduction, ignore_index)
    found, total = inner(x[None], target.reshape(1), weight, reduction, ignore_index)
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
