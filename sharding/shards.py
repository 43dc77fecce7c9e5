"""`addressable_shards`: the parts of an array on the devices of this process."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from xfunc.backends.active import runtime
from xfunc.backends.lock import lock
from xfunc.backends.placement import is_on_devices
from xfunc.errors import ShardingError, fail, short_repr
from xfunc.sharding.local_parts import fetch, target_of
from xfunc.trace import tracing


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
    """The part of an array on one device.

    Attributes:
        index: where it is in the array: ``data`` is ``x[index]``.
        device: the number of the device.
        replica_id: the rank of this device, by number, among those of all processes that hold this
            part: exactly one has 0.
        data: a CPU tensor, independent of the array; devices of this process that hold the same
            part share it.

    Source: ``jax.Shard``.
    """

    index: tuple[slice, ...]
    device: int
    replica_id: int
    data: torch.Tensor


def addressable_shards(x: torch.Tensor) -> list[Shard]:
    """The parts of a tensor on the devices of this process: one for each of them, in their order.

    Nothing is sent: processes may call it alone. Those of all processes with ``replica_id == 0``
    make up the array, each element once. A replicated array has the whole on each device.

    Args:
        x: a tensor on the devices.

    Returns:
        A list of `Shard`. Its ``data`` is a CPU tensor of the shape of the part.

    Raises:
        ShardingError: the tensor is not on the devices, or is traced.

    Source: ``jax.Array.addressable_shards``.
    """
    trace = tracing.current()
    if isinstance(x, torch.Tensor) and trace is not None and trace.is_inside(x):
        fail(
            ShardingError,
            "addressable_shards was given a traced tensor",
            "ask for the parts of what the traced function returns; inside of it, shard_map gives "
            "each device its part.",
        )
    if not isinstance(x, torch.Tensor) or not is_on_devices(x):
        what = "a tensor on the host" if isinstance(x, torch.Tensor) else short_repr(x)
        fail(
            ShardingError,
            f"addressable_shards was given {what}",
            "put it on the devices with xf.device_put.",
        )
    with lock:
        target = target_of(x)
        devices, boxes = runtime().local_devices(), target.boxes()
        if target.placement is None:
            boxes, replica = boxes * len(devices), range(runtime().device_count())
        else:  # There, devices with the same part are in the order of their numbers.
            tiles = target.placement.tiles
            replica = np.argsort(tiles.order.devices()) % tiles.replicated
        parts = fetch(x.detach(), target)
    return [
        Shard(
            tuple(slice(i, i + n) for i, n in zip(start, size, strict=True)),
            device,
            int(replica[device]),
            parts[start],
        )
        for device, (start, size) in zip(devices, boxes, strict=True)
    ]
