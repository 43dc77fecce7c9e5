"""Arguments padded to a bucket, and results cut to their sizes."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from xfunc.backends.active import runtime
from xfunc.backends.devices import device_count, to_device
from xfunc.backends.placement import hand_on_mesh
from xfunc.torchlib import functorch
from xfunc.tree import Leaf

# NOTE [padded on the CPU]
# On the device, an operation would be compiled as a separate program for each shape. So arguments
# that do not have the bucket's shape are padded on the CPU, where batches come from, and results
# that depend on sizes are cut there.


def pad(x: Leaf, shape: tuple[int, ...]) -> Leaf:
    """An argument padded at the end; see NOTE [padded on the CPU]."""
    if tuple(getattr(x, "shape", ())) == shape:
        return x
    t = x.detach().cpu() if isinstance(x, torch.Tensor) else torch.as_tensor(x, device="cpu")
    wide = torch.zeros(shape, dtype=t.dtype, device="cpu")
    wide[tuple(slice(0, n) for n in t.shape)] = t
    return wide


def unpad(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A result without its padding; sharded as before, where its new sizes can be divided so."""
    if tuple(x.shape) == shape:
        return x
    cut = x.cpu()[tuple(slice(0, n) for n in shape)]
    running = runtime()
    if running.device_count() == 1:
        return running.to_device(cut)
    (where,) = running.placements_of([x])
    if where is not None and any(n % k for n, k in zip(shape, where.tiles.dims, strict=True)):
        where = None
    result = running.put(cut, where)
    hand_on_mesh([x], [result])
    return result


_MOST = 4096


class Scalars:
    """Sizes on the device, each copied there once."""

    def __init__(self) -> None:
        self._known: dict[int, torch.Tensor] = {}

    def of(self, sizes: Iterable[int]) -> list[torch.Tensor]:
        """Each size as an int64."""
        # A transform in progress may wrap new tensors; a mesh may place them.
        if device_count() > 1 or functorch.top_level() is not None:
            return [_scalar(n) for n in sizes]
        if len(self._known) > _MOST:
            self._known.clear()
        result = []
        for n in sizes:
            known = self._known.get(n)
            if known is None:
                known = self._known[n] = _scalar(n)
            result.append(known)
        return result


def _scalar(n: int) -> torch.Tensor:
    return to_device(torch.tensor(n, device="cpu"))
