"""Arguments padded to a bucket, and results cut to their sizes."""

from __future__ import annotations

import torch

from xfunc.backends.devices import to_device
from xfunc.tree import Leaf

# NOTE [padded on the CPU]
# On the device, an operation would be compiled as a separate program for each shape. So arguments
# that do not have the bucket's shape are padded on the CPU, where batches come from, and results
# that depend on sizes are cut there.


def widened(x: Leaf, shape: tuple[int, ...]) -> Leaf:
    """An argument padded at the end; see NOTE [padded on the CPU]."""
    if tuple(getattr(x, "shape", ())) == shape:
        return x
    t = x.detach().cpu() if isinstance(x, torch.Tensor) else torch.as_tensor(x)
    wide = torch.zeros(shape, dtype=t.dtype)
    wide[tuple(slice(0, n) for n in t.shape)] = t
    return wide


def narrowed(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A result without its padding."""
    if tuple(x.shape) == shape:
        return x
    return to_device(x.cpu()[tuple(slice(0, n) for n in shape)].clone())
