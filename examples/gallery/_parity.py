"""Sequences of bits of unequal length, and their parity."""

import torch
from torch import Tensor

import xfunc as xf


def sequences(key: Tensor, batch: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """Bits [time, batch, 1], padded with noise; lengths; and the parity of each sequence."""
    a, b = xf.random.split(key)
    lengths = xf.random.randint(a, (batch,), 1, longest + 1)
    bits = xf.random.rademacher(b, (longest, batch), torch.float32)
    real = torch.arange(longest)[:, None] < lengths
    return bits[..., None], lengths, (real & (bits > 0)).sum(0) % 2
