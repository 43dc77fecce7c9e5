"""How the data of tensors lies on the devices, as torch_xla knows it.

A `Placement` is what a compiled program depends on beside the shapes of its inputs. There is one
object for each way to divide an array, so that programs are found by identity.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from xfunc.backends import active
from xfunc.backends.torch_xla import runtime, uploads
from xfunc.backends.torch_xla.executable import Executable
from xfunc.backends.torch_xla.lock import lock
from xfunc.backends.torch_xla.uploads import to_device
from xfunc.core.avals import Aval
from xfunc.core.weak import WeakTable
from xfunc.errors import ShardingError, fail
from xfunc.hlo import Builder, Shape
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.passes.accumulate import compute_wide
from xfunc.hlo.passes.barriers import hold_barriers
from xfunc.hlo.passes.offload import strip_offload
from xfunc.hlo.spmd.collectives import DEVICES
from xfunc.hlo.spmd.tiles import Order, Tiles, parse

_TILED, _PARTIAL = 3, 5  # torch_xla's numbers of kinds of sharding
_MOST_DIMS = 5  # that torch_xla 2.9 makes a sharding for from Python


class Placement:
    """One way to divide arrays; compared by identity.

    Attributes:
        tiles: what each device holds; devices that hold the same are in ascending order.
    """

    def __init__(self, tiles: Tiles):
        self.tiles = tiles

    @functools.cached_property
    def arguments(self) -> tuple[Any, ...]:
        """What torch_xla makes an ``OpSharding`` of."""
        tiles, grid = self.tiles, self.tiles.grid()
        if tiles.replicated == 1:
            devices = grid[..., 0].tolist()
            return devices, devices, [], _TILED
        groups = grid.reshape(-1, tiles.replicated).tolist()
        numbers = torch.arange(len(groups)).reshape(tiles.dims).tolist()
        return grid.tolist(), numbers, groups, _PARTIAL

    @functools.cached_property
    def op_sharding(self) -> Any:
        """torch_xla's ``OpSharding``."""
        X = runtime.xla()
        if len(self.tiles.dims) <= _MOST_DIMS - (self.tiles.replicated > 1):
            return X.OpSharding(*self.arguments)
        tiny = torch.zeros(self.tiles.dims, device=runtime.device())
        return X._get_xla_op_sharding(moved(tiny, self))

    def __repr__(self) -> str:
        return f"Placement({self.tiles})"


@functools.lru_cache(maxsize=4096)
def placement_of(tiles: Tiles) -> Placement | None:
    """The placement of tiles; None if each device holds the whole array."""
    if tiles.is_replicated:
        return None
    grid = tiles.grid().copy()
    grid.sort(axis=-1)
    listed = Tiles(tiles.dims, 1, tiles.replicated, Order.listing(grid.ravel()))
    return _one(listed)


@functools.cache
def _one(tiles: Tiles) -> Placement:
    return Placement(tiles)


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> Placement | None:
    tiles = parse(text) if text else None
    return None if tiles is None else placement_of(tiles)


def placements(tensors: Sequence[torch.Tensor]) -> tuple[Placement | None, ...]:
    """How tensors of the device lie on it; lazy ones are computed first."""
    X = runtime.xla()
    flat = list(tensors)
    if any(X._check_tensor_need_materialization(flat)):
        runtime.settle(flat)
    return tuple(map(_read, X._get_xla_sharding_specs(flat)))


def lie(tensors: Sequence[torch.Tensor]) -> tuple[Placement | None, ...]:
    """`placements` as an executable is found by: on a single device there is one way only."""
    return () if runtime.device_count() == 1 else placements(tensors)


def put(tensor: torch.Tensor, placement: Placement) -> torch.Tensor:
    """A CPU tensor on the devices: each gets its part only."""
    if len(placement.tiles.dims) > _MOST_DIMS - (placement.tiles.replicated > 1):
        return moved(tensor.to(runtime.device()), placement)
    X = runtime.xla()
    tensor = uploads.plain(tensor)
    spec = X.XlaShardingSpec(tensor, *placement.arguments, False)
    return X._xla_tensors_from_aten([tensor], [str(runtime.device())], [spec])[0]


def divided(tensor: torch.Tensor, sharding: Any) -> torch.Tensor:
    """The data of a tensor on the running devices, divided as a sharding says."""
    with lock:
        if active.runtime().device_count() == 1:
            found = active.runtime().to_device(tensor.detach())
        else:
            where = placement_of(sharding.tiles(tensor.ndim))
            if tensor.device.type == "cpu" and where is not None:
                found = put(tensor.detach(), where)
            else:
                found = moved(to_device(tensor.detach()), where)
    remember(found, sharding)
    return found


def as_argument(x: Any, sharding: Any, function: str, label: str) -> Any:
    """An argument that a function takes divided as a sharding says.

    A tensor on the CPU, or of which each device holds the whole, is divided; one that is divided
    already must be so.
    """
    if not isinstance(x, torch.Tensor) or x.requires_grad:
        return x
    sharding.check(tuple(x.shape), f"{label} of {function}")
    if x.device.type != "cpu" and active.runtime().device_count() > 1:
        (where,) = placements([x])
        if where is placement_of(sharding.tiles(x.ndim)):
            return x
        if where is not None:
            fail(
                ShardingError,
                f"{function} takes {label} sharded as {sharding}, but it is sharded as "
                f"{where.tiles}",
                "reshard it with xf.device_put, or remove its sharding from the function.",
            )
    return divided(x, sharding)


def moved(tensor: torch.Tensor, placement: Placement | None) -> torch.Tensor:
    """A tensor of the device, divided in another way: XLA moves the parts."""
    (before,) = placements([tensor])
    if before is placement:
        return tensor
    aval = Aval(tuple(tensor.shape), tensor.dtype)
    return _mover(aval, before, placement)([tensor])[0]


@functools.lru_cache(maxsize=1024)
def _mover(aval: Aval, before: Placement | None, after: Placement | None) -> Executable:
    b = Builder("device_put")
    body = b.computation("device_put")
    shape = Shape(aval.dtype, aval.shape)
    value, proto = body.instruction("custom-call", shape, [body.parameter(shape)])
    proto.custom_call_target = "Sharding"
    if after is None:
        proto.sharding.type = pb.OpSharding.REPLICATED
    else:
        after.tiles.write(proto.sharding)
    module = b.build(body.build(body.tuple([value])))
    prepare_to_run(b.name, module.proto)
    handle = runtime.builder().computation_from_module_proto(b.name, module.to_bytes())
    return Executable("device_put", handle, [aval], (), (before,))


_noted: WeakTable[Any] = WeakTable()


def remember(tensor: torch.Tensor, sharding: Any) -> None:
    """Note how a tensor was divided: a sharding, or the mesh of one."""
    # Not as an attribute, which torch.save would write.
    _noted[tensor] = sharding


def remembered(tensor: torch.Tensor) -> Any:
    """What was noted; in-place changes do not change it."""
    return _noted.get(tensor)


def known_sharding(tensor: torch.Tensor) -> Any:
    """The sharding that was noted for a tensor, if it still lies so."""
    known = remembered(tensor)
    if known is None or not hasattr(known, "tiles"):
        return None
    if active.runtime().device_count() == 1:
        return known
    (where,) = placements([tensor])
    return known if placement_of(known.tiles(tensor.ndim)) is where else None


def hand_on_mesh(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Note for the results of a program the mesh that its inputs were divided on."""
    for t in inputs:
        known = remembered(t)
        if known is not None:
            mesh = getattr(known, "mesh", known)
            for o in outputs:
                remember(o, mesh)
            return


def prepare_to_run(name: str, proto: pb.HloModuleProto) -> None:
    """Make a module fit to be compiled for the running devices, in place.

    NOTE [the order of devices is listed]: torch_xla 2.9 tells programs apart by a hash that leaves
    out the compact form of an order of devices: of two programs that differ in nothing else, the
    second would run as the first.

    Raises:
        ShardingError: the module is for another number of devices.
    """
    if runtime.is_cpu():
        strip_offload(proto)  # It has one memory.
        compute_wide(proto)
        if runtime.device_count() == 1:  # After the partitioner, XLA heeds barriers.
            hold_barriers(proto)
    count = runtime.device_count()
    n = traced_for(proto, count)
    if n != count:
        fail(
            ShardingError,
            f"{name} was traced for a mesh of {n} devices, but this process has {count}",
            "run it on a mesh of available devices (xf.sharding.make_mesh); an "
            "AbstractMesh is only for lowering.",
        )
    for computation in proto.computations:
        for i in computation.instructions:
            if i.HasField("sharding"):
                _list_devices(i.sharding)
            if i.collective_device_list.HasField("iota_replica_group_list"):
                _list_groups(i.collective_device_list)


def traced_for(proto: pb.HloModuleProto, expected: int) -> int:
    """The number of devices that a module is for; the notes that say so are removed, in place.

    Args:
        proto: the module.
        expected: the answer where nothing says another.
    """
    said = set[int]()
    for computation in proto.computations:
        for i in computation.instructions:
            if DEVICES in i.frontend_attributes.map:
                said.add(int(i.frontend_attributes.map.pop(DEVICES)))
            if i.HasField("sharding"):
                said.update(_devices_of(i.sharding))
    return next((n for n in said if n != expected), expected)


def _devices_of(sharding: pb.OpSharding) -> Iterator[int]:
    for part in sharding.tuple_shardings:
        yield from _devices_of(part)
    if sharding.type == pb.OpSharding.OTHER:
        yield math.prod(sharding.tile_assignment_dimensions)


def _list_devices(sharding: pb.OpSharding) -> None:
    """See NOTE [the order of devices is listed]."""
    for part in sharding.tuple_shardings:
        _list_devices(part)
    if sharding.iota_reshape_dims:
        order = Order(tuple(sharding.iota_reshape_dims), tuple(sharding.iota_transpose_perm))
        sharding.tile_assignment_devices.extend(order.devices().tolist())
        del sharding.iota_reshape_dims[:]
        del sharding.iota_transpose_perm[:]


def _list_groups(groups: pb.CollectiveDeviceListProto) -> None:
    """See NOTE [the order of devices is listed]."""
    iota = groups.iota_replica_group_list
    order = Order(tuple(iota.iota_reshape_dims), tuple(iota.iota_transpose_perm))
    for row in order.devices().reshape(-1, iota.num_devices_per_group).tolist():
        groups.replica_groups.add(replica_ids=row)
    groups.ClearField("iota_replica_group_list")


def shards_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What each device of this process holds of an array, on the host, with its padding."""
    (shards,) = runtime.xla()._get_local_shards([tensor])
    return [data for data, _ in shards]


def from_shards(
    shards: Sequence[torch.Tensor], placement: Placement, shape: Sequence[int]
) -> torch.Tensor:
    """An array of what each device of this process is to hold, with its padding."""
    return runtime.xla()._global_tensor_from_cpu_shards(
        list(shards), placement.op_sharding, list(shape)
    )
