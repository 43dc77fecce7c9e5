"""The parts of an array that this process holds, as CPU tensors: for files."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import torch

from xfunc.backends import placement
from xfunc.backends.active import runtime
from xfunc.backends.devices import device_count, to_device
from xfunc.backends.lock import lock
from xfunc.backends.placement import Placement
from xfunc.core.avals import short
from xfunc.sharding.spec import NamedSharding

Start = tuple[int, ...]
Boxes = tuple[tuple[Start, tuple[int, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Target:
    """The shape and dtype of an array, and its placement on the devices.

    Attributes:
        on_host: whether it is a CPU tensor.
        placement: its sharding; None: replicated.
        sharding: the result of `sharding_of` for it, or None.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    on_host: bool = False
    placement: Placement | None = None
    sharding: NamedSharding | None = None

    def __str__(self) -> str:
        text = short(self)
        if self.on_host or self.placement is None:
            return f"{text} {'on the host' if self.on_host else 'on each device'}"
        tiles = self.placement.tiles
        devices = [*map(int, tiles.order.devices())]
        order = "" if devices == sorted(devices) else f" on the devices {devices}"
        return f"{text} in {'x'.join(map(str, tiles.dims))} parts{order}"

    def boxes(self) -> Boxes:
        """For each device of this process, the start and the size of its part.

        Devices that hold the same part have the same box. torch_xla pads arrays that cannot be
        sharded evenly; the padding is not in the box.
        """
        if self.placement is None:
            return (((0,) * len(self.shape), self.shape),)
        return _boxes(self.placement, self.shape, runtime().local_devices())

    @property
    def padded(self) -> tuple[int, ...]:
        """The shape of each part, with padding."""
        if self.placement is None:
            return self.shape
        return _padded(self.placement, self.shape)


def _padded(placement: Placement, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-n // d) for n, d in zip(shape, placement.tiles.dims, strict=True))


@functools.lru_cache(4096)
def _boxes(placement: Placement, shape: tuple[int, ...], devices: tuple[int, ...]) -> Boxes:
    tiles, padded = placement.tiles, _padded(placement, shape)
    place = np.argsort(tiles.order.devices()) // tiles.replicated
    found = []
    for device in devices:
        index = np.unravel_index(place[device], tiles.dims)
        start = tuple(int(i) * n for i, n in zip(index, padded, strict=True))
        ends = zip(start, padded, shape, strict=True)
        found.append((start, tuple(max(0, min(i + n, s) - i) for i, n, s in ends)))
    return tuple(found)


def target_of(tensor: torch.Tensor) -> Target:
    """The shape, dtype and placement of a tensor; a lazy one is computed first."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if not placement.is_on_devices(tensor):
        return Target(shape, dtype, on_host=True)
    if device_count() == 1:
        return Target(shape, dtype)
    with lock:
        (where,) = runtime().placements_of([tensor])
    return Target(shape, dtype, False, where, placement.recorded_sharding(tensor))


def fetch(tensor: torch.Tensor, target: Target) -> dict[Start, torch.Tensor]:
    """The parts of a tensor with this placement, on the host, without padding; a CPU tensor is its
    only part.
    """
    boxes = target.boxes()
    if target.placement is None:
        return {boxes[0][0]: _compact(tensor.detach().cpu())}
    with lock:
        shards = runtime().shards_of(tensor)
    return {
        start: _compact(data[tuple(map(slice, size))].to(target.dtype))
        for (start, size), data in zip(boxes, shards, strict=True)
    }


def copy(tensor: torch.Tensor, target: Target) -> dict[Start, torch.Tensor]:
    """Parts as from `fetch` that are independent of later changes to the tensor."""
    found = fetch(tensor, target)
    return {start: part.clone() for start, part in found.items()} if target.on_host else found


def _compact(part: torch.Tensor) -> torch.Tensor:
    """A tensor alone in its storage, because files contain whole storages."""
    return part if part.untyped_storage().nbytes() == part.nbytes else part.clone()


def assemble(parts: Mapping[Start, torch.Tensor], target: Target) -> torch.Tensor:
    """A tensor assembled from its parts, which include their padding."""
    boxes = target.boxes()
    if target.on_host:
        return parts[boxes[0][0]]
    with lock:
        if target.placement is None:
            result = to_device(parts[boxes[0][0]])
        else:
            shards = [parts[start] for start, _ in boxes]
            result = runtime().from_shards(shards, target.placement, target.shape)
    if target.sharding is not None:
        placement.record_sharding(result, target.sharding)
    return result
