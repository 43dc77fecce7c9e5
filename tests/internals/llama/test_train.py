"""The internals of training steps: the estimate of the gradient's noise."""

import pytest
import torch

from examples.llama.train import steps


def test_gradient_noise_estimate_is_unbiased() -> None:
    """Of gradients whose mean and variance are known."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([0.3, -0.2, 0.1])
    parts, targets, draws = 4, 6, 20000
    each = truth + 0.5 * torch.randn(draws, parts, targets, 3, generator=generator)
    of_parts = each.mean(2)
    squares, whole = of_parts.square().sum(-1).mean(-1), of_parts.mean(1)
    count = torch.tensor(float(parts * targets))
    found = [steps._noise(q, {"w": g}, count, parts) for q, g in zip(squares, whole, strict=True)]
    signal, variance = (torch.stack(each).mean().item() for each in zip(*found, strict=True))
    assert signal == pytest.approx(truth.square().sum().item(), abs=0.005)
    assert variance == pytest.approx(3 * 0.25, rel=0.02)
