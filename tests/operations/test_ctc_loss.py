"""`ctc_loss` in traced code, against torch's own."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf


def drawn(seed: int, joined: bool) -> tuple[Any, ...]:
    """Logits, targets and lengths; labels repeat, and some have too little time."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    steps, batch, classes, longest = (draw.randint(*of) for of in ((1, 9), (1, 4), (2, 5), (0, 4)))
    blank = draw.randrange(classes)
    labels = [c for c in range(classes) if c != blank]
    lengths = [draw.randint(0, longest) for _ in range(batch)]
    times = [draw.randint(1, steps) for _ in range(batch)]
    targets = torch.tensor([[draw.choice(labels) for _ in range(longest)] for _ in range(batch)])
    targets = targets.long().reshape(batch, longest)
    if joined:
        targets = torch.cat([row[:n] for row, n in zip(targets, lengths, strict=True)])
    logits = torch.randn(steps, batch, classes, dtype=torch.float64)
    return logits, targets, times, lengths, blank


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("seed", range(24))
def test_ctc_loss_and_gradient(seed: int) -> None:
    joined, normalised, reduction = seed % 2 > 0, seed % 4 > 1, ["none", "mean", "sum"][seed % 3]
    logits, targets, times, lengths, blank = drawn(seed, joined)

    def loss(x: torch.Tensor, targets: Any, times: Any, lengths: Any, zero: bool) -> torch.Tensor:
        x = x.log_softmax(2) if normalised else x
        return F.ctc_loss(x, targets, times, lengths, blank, reduction, zero)

    def total(*args: Any) -> torch.Tensor:
        return loss(*args).sum()

    x = logits if normalised else logits.log_softmax(2)
    tensors = (torch.tensor(times), torch.tensor(lengths))
    for zero in (False, True):
        want = loss(x, targets, *tensors, zero)
        step = xf.jit(loss, static_argnums=4)
        torch.testing.assert_close(step(x, targets, *tensors, zero).cpu(), want)
        # Lengths that are known while tracing:
        known = xf.jit(lambda x, zero=zero: loss(x, targets, tuple(times), tuple(lengths), zero))
        torch.testing.assert_close(known(x).cpu(), want)
        if want.isfinite().all():
            wanted = torch.func.grad(total)(x, targets, *tensors, zero)
            got = xf.jit(xf.grad(total), static_argnums=4)(x, targets, *tensors, zero)
            torch.testing.assert_close(got.cpu(), wanted)


def test_ctc_loss_of_one_text_module_and_vmap() -> None:
    x = torch.randn(7, 5).log_softmax(1)
    targets, times, length = torch.tensor([1, 2, 2]), torch.tensor(7), torch.tensor(3)
    loss = torch.nn.CTCLoss(reduction="sum")
    got = xf.jit(loss)(x, targets, times, length).cpu()
    torch.testing.assert_close(got, loss(x, targets, times, length))
    plain: Any = torch.ctc_loss
    numbered = xf.jit(plain, static_argnums=(4, 5))(x, targets, times, length, 0, 0).cpu()
    torch.testing.assert_close(numbered, plain(x, targets, times, length, 0, 0))
    each = xf.vmap(lambda x: loss(x, targets, times, length))(torch.stack([x, x.flip(0)]))
    both = torch.stack([loss(y, targets, times, length) for y in (x, x.flip(0))])
    torch.testing.assert_close(each.cpu(), both)


def test_ctc_loss_errors_are_those_of_torch() -> None:
    x, targets, n = torch.zeros(4, 1, 3), torch.ones(1, 2, dtype=torch.int64), torch.tensor([2])
    for f in (F.ctc_loss, xf.jit(F.ctc_loss, static_argnums=(4, 5))):
        with pytest.raises(RuntimeError, match="blank must be in label range"):
            f(x, targets, n, n, 3, "mean")
        with pytest.raises(ValueError, match="most is not a valid value for reduction"):
            f(x, targets, n, n, 0, "most")
