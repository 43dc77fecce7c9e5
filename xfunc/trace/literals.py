"""Host data as constants of a program, without a transfer."""

from __future__ import annotations

import torch

from xfunc.torchlib import functorch
from xfunc.trace import recorder


def literal(value: torch.Tensor) -> torch.Tensor:
    """A traced tensor that is the constant `value` (a CPU tensor)."""
    with functorch.bottom_level():  # In a jvp, a new tensor would be a value of the jvp's level.
        if value.numel() and value.ndim:
            return recorder.literal(value)
        with torch._C.DisableTorchFunction():  # It is not a traced value: it may be read.
            fill = value.item() if value.numel() else 0
        return torch.full(value.shape, fill, dtype=value.dtype, device=recorder.device())
