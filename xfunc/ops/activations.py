"""Activations and their derivatives.

At a kink torch takes the slope of one side, and for NaN that of the part not cut off.
"""

from __future__ import annotations

import torch

from xfunc.core import torch_versions
from xfunc.ops.registry import composition, kernel
from xfunc.rules.operands import HALF, rounded

Tensor = torch.Tensor


@composition("silu_backward")
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    # torch composes the same, but writes into a tensor for ``1 - sigmoid``. To check that write, it
    # imports sympy, which takes most of the time of a process's first trace.
    sigmoid = torch.sigmoid(x)
    return grad * (sigmoid * (1 + x * (1 - sigmoid)))


@kernel("softshrink")
def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    if not lambd >= 0:  # NaN too
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd}")
    if x.dtype in HALF:
        bound = rounded(lambd, x.dtype) if torch_versions.softshrink_rounds_bound() else lambd
        return softshrink(x.float(), bound).to(x.dtype)
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x * 0))


@kernel("_prelu_kernel_backward")
def prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(x > 0, grad, weight * grad), torch.where(x > 0, 0, x * grad)


@kernel("log_sigmoid_forward")
def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    small = torch.exp(-x.abs())
    return x.clamp(max=0) - torch.log1p(small), small


@kernel("log_sigmoid_backward")
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    small = torch.exp(-x.abs())
    return grad * torch.where(x < 0, 1, small) / (1 + small)
