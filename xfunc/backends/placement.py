"""The placement of tensors' data on the devices.

A compiled program depends on the shapes and the `Placement`s of its inputs. There is one object for
each way to shard an array, so that programs are found by identity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from xfunc.backends.active import runtime
from xfunc.backends.lock import lock
from xfunc.backends.protocol import Runtime
from xfunc.core.types import Sharding
from xfunc.core.weak import WeakTable
from xfunc.errors import ShardingError, fail
from xfunc.hlo.spmd.tiles import DeviceAssignment, HloSharding, parse
from xfunc.tree import Leaf


class Placement:
    """One way to shard arrays; compared by identity.

    Attributes:
        tiles: the part on each device; devices with the same part are in ascending order.
    """

    def __init__(self, tiles: HloSharding):
        self.tiles = tiles

    def __repr__(self) -> str:
        return f"Placement({self.tiles})"


@functools.lru_cache(maxsize=4096)
def placement_of(tiles: HloSharding) -> Placement | None:
    """The placement of tiles; None if the array is replicated."""
    if tiles.is_replicated:
        return None
    grid = tiles.grid().copy()
    grid.sort(axis=-1)
    listed = HloSharding(tiles.dims, 1, tiles.replicated, DeviceAssignment.listing(grid.ravel()))
    return _one(listed)


@functools.cache
def _one(tiles: HloSharding) -> Placement:
    return Placement(tiles)


@functools.lru_cache(maxsize=4096)
def read(text: str) -> Placement | None:
    """The placement that XLA prints in this form; None if it is replicated, or not printed."""
    tiles = parse(text) if text else None
    return None if tiles is None else placement_of(tiles)


def is_on_devices(tensor: torch.Tensor) -> bool:
    """Whether a tensor's data is where programs run."""
    return _holds(runtime(), tensor)


def _holds(where: Runtime, tensor: torch.Tensor) -> bool:
    try:
        return bool(where.holds(tensor))
    except AttributeError:  # A plain tensor, while the runtime has its own class.
        return False


def placement_of_tensor(tensor: torch.Tensor) -> Placement | None:
    """How a tensor is sharded on the devices; None: it is not."""
    where = runtime()
    if where.device_count() == 1 or not _holds(where, tensor):
        return None
    (result,) = where.placements_of([tensor])
    return result


def shard(tensor: torch.Tensor, sharding: Sharding) -> torch.Tensor:
    """The data of a tensor on the running devices, with a given sharding.

    Raises:
        ShardingError: the sharding is for another number of devices.
    """
    with lock.for_run():
        where = runtime()
        count = where.device_count()
        if count == 1:
            result = where.to_device(tensor.detach())
        else:
            tiles = sharding.tiles(tensor.ndim)
            n = math.prod(tiles.dims) * tiles.manual * tiles.replicated
            if n not in (1, count):
                fail(
                    ShardingError,
                    f"{sharding} is for a mesh of {n} devices, but this process has {count}",
                    "use a mesh of available devices (xf.sharding.make_mesh); an AbstractMesh is "
                    "only for lowering.",
                )
            result = where.put(tensor.detach(), placement_of(tiles))
    record_sharding(result, sharding)
    return result


def as_argument(x: Leaf, sharding: Sharding, function: str, label: str) -> Leaf:
    """An argument that a function takes with a given sharding.

    A CPU tensor or a replicated one is sharded; one that is already sharded must have this
    sharding.
    """
    if not isinstance(x, torch.Tensor) or x.requires_grad:
        return x
    sharding.check(tuple(x.shape), f"{label} of {function}")
    where = placement_of_tensor(x)
    if where is not None:
        if where is placement_of(sharding.tiles(x.ndim)):
            return x
        other = known_sharding(x) or sharding.of_tiles(where.tiles) or where.tiles
        fail(
            ShardingError,
            f"{function} takes {label} sharded as {sharding}, but it is sharded as {other}",
            "reshard it with xf.device_put, or remove its sharding from the function.",
        )
    return shard(x, sharding)


_noted: WeakTable[Any] = WeakTable()  # shardings, and meshes


def record_sharding(tensor: torch.Tensor, sharding: object) -> None:
    """Record how a tensor was sharded: a sharding, or the mesh of one."""
    # Not as an attribute, which torch.save would write.
    _noted[tensor] = sharding


def recorded_sharding(tensor: torch.Tensor) -> Any:
    """The record of a tensor; in-place changes do not affect it."""
    return _noted.get(tensor)


def known_sharding(tensor: torch.Tensor) -> Sharding | None:
    """The sharding recorded for a tensor, if it still has that placement."""
    known = recorded_sharding(tensor)
    if known is None or not hasattr(known, "tiles"):
        return None
    where = runtime()
    if where.device_count() == 1:
        return known
    if not _holds(where, tensor):
        return None
    return (
        known
        if placement_of(known.tiles(tensor.ndim)) is where.placements_of([tensor])[0]
        else None
    )


def hand_on_mesh(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Record for the results of a program the mesh of its inputs."""
    for t in inputs:
        known = recorded_sharding(t)
        if known is not None:
            mesh = getattr(known, "mesh", known)
            for o in outputs:
                record_sharding(o, mesh)
            return
