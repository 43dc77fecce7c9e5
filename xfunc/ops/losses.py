"""Losses over class labels.

The total weight is a result: torch.func's rule for vmap divides by it.
"""

from __future__ import annotations

import torch

from xfunc.ops.registry import composition, kernel, original

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


@kernel("mse_loss_backward")
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    if not x.numel():  # torch's decomposition divides by the number of elements.
        return torch.zeros_like(x)
    return original("mse_loss_backward")(grad, x, target, reduction)


def _number(x: Tensor) -> Tensor:
    """Truth values as integers, which torch's kernels subtract and ``-`` does not."""
    return x.to(torch.uint8) if x.dtype is torch.bool else x


@kernel("smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    # In torch's decomposition the slope is 0 where the difference is NaN.
    grad = grad / max(x.numel(), 1) if reduction == 1 else grad
    difference = x - _number(target)
    is_far = difference.abs() >= beta
    return torch.where(is_far, grad * difference.sign(), grad * difference / beta)


@composition("huber_loss")
def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    # In torch's decomposition the second derivative is 0 at 0, and the first is NaN at infinity.
    torch._check(delta > 0, lambda: "huber_loss does not support non-positive values for delta.")
    difference = x - _number(target)
    size = difference.abs()
    is_far = size >= delta
    near = torch.where(is_far, 0, difference)
    losses = torch.where(is_far, delta * (size - 0.5 * delta), 0.5 * near * near)
    return _reduced(losses, reduction)


# NOTE [margin losses]: torch's decompositions count the labels after a -1, which ends a row of
# labels, and have a slope of 1 where a margin is exactly met; torch's kernels have 0 there.


@composition("multilabel_margin_loss_forward")
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    torch._check(
        x.ndim <= 2 and (x.ndim == 0 or x.shape[-1] != 0),
        lambda: (
            "Expected non-empty vector or matrix with optional 0-dim batch size, "
            f"but got: {x.shape}"
        ),
    )
    torch._check(
        target.shape == x.shape,
        lambda: f"inconsistent target size: {target.shape} for input of size: {x.shape}",
    )
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    n = rows.shape[-1]
    is_label = (labels == -1).cumsum(-1) == 0
    chosen = rows.gather(-1, torch.where(is_label, labels, 0))
    classes = torch.arange(n, device=x.device)
    is_target = (is_label.unsqueeze(-1) & (labels.unsqueeze(-1) == classes)).any(-2)
    margins = torch.relu(1 - chosen.unsqueeze(-1) + rows.unsqueeze(-2))  # [batch, label, class]
    counts = is_label.unsqueeze(-1) & ~is_target.unsqueeze(-2)
    losses = torch.where(counts, margins, 0).sum((-2, -1)) / n
    return (
        _reduced(losses.reshape(x.shape[:-1]), reduction),
        is_target.to(x.dtype).reshape(target.shape),
    )


@composition("multi_margin_loss")
def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    rows, labels = torch.atleast_2d(x), torch.atleast_1d(target)
    count, n = rows.shape[0], rows.shape[-1]
    torch._check(p == 1 or p == 2, lambda: "only p == 1 and p == 2 supported")
    torch._check(
        rows.ndim == 2 and n != 0,
        lambda: (
            "Expected non-empty vector or matrix with optional 0-dim batch size, "
            f"but got: {rows.shape}"
        ),
    )
    torch._check(
        labels.ndim == 1 and len(labels) == count,
        lambda: f"inconsistent target size, expected {count} but got {labels.shape}",
    )
    labels = labels.unsqueeze(1)
    margins = torch.relu(margin - rows.gather(1, labels) + rows)
    margins = margins if p == 1 else margins * margins
    if weight is not None:
        scales = torch.atleast_1d(weight)
        torch._check(
            scales.ndim == 1 and len(scales) == n,
            lambda: f"inconsistent weight size, expected {n} but got {scales.shape}",
        )
        margins = margins * scales[labels]
    is_other = torch.arange(n, device=x.device) != labels
    losses = torch.where(is_other, margins, 0).sum(1) / n
    return _reduced(losses.reshape(target.shape), reduction)


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    """The losses (reduction 0), their mean (1) or their sum (2)."""
    if reduction == 0:
        return losses
    return losses.mean() if reduction == 1 else losses.sum()
