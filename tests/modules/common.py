"""Inputs and comparisons of the tests of `xf.functional`."""

from typing import Any

import torch
from torch import Tensor, nn

import xfunc as xf


def rand(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def assert_close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(xf.device_get(ours), theirs, rtol=2e-4, atol=2e-5)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """What `backward` left in a module, zeros where it left nothing."""
    return {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()
    }
