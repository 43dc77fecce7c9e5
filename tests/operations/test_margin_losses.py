"""Margin losses: a -1 ends a row of labels; slopes where a margin is exactly met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor
LABELS = torch.tensor([[3, 0, -1, 1], [-1, 0, 1, 2], [0, 1, 2, 3], [1, 1, -1, 0]])
SCORES = torch.tensor([[0.1, 0.2, 0.4, 0.8], [0, 1, 2, -1], [1, 1, 1, 1], [0.5, -3, 2, 0]])


def same_with_gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> None:
    want = f(x)
    torch.testing.assert_close(xf.device_get(xf.jit(f)(x)), want)
    slopes: Any = torch.autograd.functional.jacobian(f, x)
    for jacobian in (xf.jacrev, xf.jacfwd):
        torch.testing.assert_close(xf.device_get(xf.jit(jacobian(f))(x)), slopes)


def test_multilabel_margin_loss_ends_at_padding() -> None:
    x, y = torch.tensor([0.1, 0.2, 0.4, 0.8, -0.3]), torch.tensor([3, 0, -1, 1, 1])
    assert xf.jit(F.multilabel_margin_loss)(x, y).item() == pytest.approx(0.8)
    rows = xf.vmap(F.multilabel_margin_loss)(SCORES, LABELS)
    want = F.multilabel_margin_loss(SCORES, LABELS, reduction="none")
    torch.testing.assert_close(xf.device_get(rows), want)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multilabel_margin_loss_with_padding_and_ties(reduction: str) -> None:
    same_with_gradient(
        lambda x: F.multilabel_margin_loss(x, LABELS.to(x.device), reduction=reduction), SCORES
    )
    same_with_gradient(
        lambda x: F.multilabel_margin_loss(x, LABELS[0].to(x.device), reduction=reduction),
        SCORES[1],
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multi_margin_loss_slope_where_a_margin_is_met(reduction: str) -> None:
    for p in (1, 2):
        same_with_gradient(
            lambda x, p=p: F.multi_margin_loss(
                x, torch.tensor([1, 2, 0, 3], device=x.device), p=p, reduction=reduction
            ),
            SCORES,
        )
