"""The last changes to a module, which depend on the devices that run it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from xfunc.core.avals import Aval, hlo_shape
from xfunc.errors import ShardingError, fail
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import entry_of, fresh_ids, instruction
from xfunc.hlo.passes.barriers import outline_barriers
from xfunc.hlo.passes.bits import negate_bits
from xfunc.hlo.passes.branches import hide_constraints
from xfunc.hlo.passes.convolutions import keep_space_whole
from xfunc.hlo.passes.first_of_sorted import hide_sorts
from xfunc.hlo.passes.limits import saturate_tanh
from xfunc.hlo.passes.merged import keep_rows_apart
from xfunc.hlo.passes.offload import strip_offload
from xfunc.hlo.passes.orient import orient_products
from xfunc.hlo.passes.pads import pad_between_by_merging
from xfunc.hlo.passes.scatter_indices import narrow_scatter_indices
from xfunc.hlo.passes.scatters import divide_evenly, hide_positions
from xfunc.hlo.passes.updates import keep_updates_apart
from xfunc.hlo.passes.wide import upcast_f16
from xfunc.hlo.spmd.collectives import DEVICES, list_groups
from xfunc.hlo.spmd.tiles import DeviceAssignment


def prepare_to_run(name: str, proto: pb.HloModuleProto, count: int, on_cpu: bool) -> None:
    """Prepare a module in place for compilation for a number of devices.

    NOTE [the order of devices is listed]: torch_xla 2.9 distinguishes programs by a hash that
    ignores the compact form of an order of devices: of two programs that differ only in that, the
    second would run as the first.

    Raises:
        ShardingError: the module is for another number of devices.
    """
    if on_cpu:
        strip_offload(proto)  # It has one memory.
        upcast_f16(Contents(proto))
        saturate_tanh(proto)
        negate_bits(proto)
        keep_updates_apart(proto)
        outline_barriers(proto, partitioned=count > 1)
        if count == 1:
            orient_products(proto)
    prepare_to_partition(proto, count)
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


def prepare_to_partition(proto: pb.HloModuleProto, count: int) -> None:
    """Let XLA's partitioner compute rightly for a number of devices, here or elsewhere, in place.

    The partitioner of every runtime and of libtpu reads replica groups that are listed.
    """
    if count > 1:
        keep_rows_apart(proto)
        narrow_scatter_indices(proto)
        pad_between_by_merging(proto)
        divide_evenly(proto, count)
        hide_positions(proto)
        keep_space_whole(proto)
        hide_sorts(proto, count)
        hide_constraints(proto)
    list_groups(proto)


def traced_for(proto: pb.HloModuleProto, expected: int) -> int:
    """The number of devices that a module is for; the notes about it are removed, in place.

    Args:
        proto: the module.
        expected: the default, without such a note.
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
        order = DeviceAssignment(
            tuple(sharding.iota_reshape_dims), tuple(sharding.iota_transpose_perm)
        )
        sharding.tile_assignment_devices.extend(order.devices().tolist())
        del sharding.iota_reshape_dims[:]
        del sharding.iota_transpose_perm[:]


UNUSED = Aval((), torch.bool)
"""The aval of the parameter that `add_parameter` adds."""


def add_parameter(proto: pb.HloModuleProto) -> None:
    """Let a program that takes nothing take a boolean, in place."""
    shape = hlo_shape(UNUSED).proto
    parameter = instruction("parameter", next(fresh_ids(proto)), shape)
    entry = entry_of(proto)
    entry.instructions.insert(0, parameter)
    for signature in (entry.program_shape, proto.host_program_shape):
        signature.parameters.append(shape)
        signature.parameter_names.append("unused")
