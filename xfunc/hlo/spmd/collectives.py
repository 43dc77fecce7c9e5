"""Instructions for communication between the devices of a group in a manual region.

NOTE [partly manual regions]: XLA's partitioner aborts the process if it meets an all-gather or an
all-to-all in a region that is manual over only some of the devices' axes, and does not support the
partition id there. These three are then expressed as sums.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

from xfunc.graph import build
from xfunc.graph.node import ArrayType, Node, array_type
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.attributes import said
from xfunc.hlo.module import Module
from xfunc.hlo.plain import plain_tensors
from xfunc.hlo.spmd.tiles import DeviceAssignment

AXES = "xfunc_axes"
"""Frontend attribute of a collective: the mesh axes along which its groups extend.

On another instruction: the axes along which its result differs from device to device.
"""
DEVICES = "xfunc_devices"
"""Frontend attribute of values leaving a manual region: the number of devices of its mesh."""


@dataclasses.dataclass(frozen=True)
class Groups:
    """All devices, in groups of equal size.

    Attributes:
        size: of a group.
        order: of the devices, group by group.
        axes: the mesh axes along which a group extends.
        partly: whether the region is manual over only some axes.
    """

    size: int
    order: DeviceAssignment
    axes: tuple[str, ...]
    partly: bool = False

    def rows(self) -> np.ndarray:
        """The devices, one group in each row."""
        return self.order.devices().reshape(-1, self.size)

    @property
    def mark(self) -> bytes:
        """`Node.more` that states along which axes a node communicates, or its result differs."""
        return said({AXES: ",".join(self.axes)})

    def node(
        self,
        opcode: str,
        type: ArrayType,
        x: Node,
        combine: str = "",
        dims: Sequence[int] = (),
    ) -> Node:
        """A node that communicates in these groups.

        Args:
            opcode: of the node.
            type: of its result.
            x: its operand.
            combine: the opcode of the operation by which arrays are combined, if they are.
            dims: its dimensions.
        """
        how = pb.HloInstructionProto(dimensions=dims)
        how.channel_id = 1  # `xfunc.hlo.final` gives the final one.
        how.use_global_device_ids = opcode != "all-to-all"  # which has no other numbers
        groups = how.collective_device_list
        if self.order.listed is None:
            iota = groups.iota_replica_group_list
            iota.num_devices_per_group = self.size
            iota.num_replica_groups = math.prod(self.order.reshape) // self.size
            iota.iota_reshape_dims.extend(self.order.reshape)
            iota.iota_transpose_perm.extend(self.order.perm)
        else:
            for row in self.rows().tolist():
                groups.replica_groups.add(replica_ids=row)
        calls = ((combine, array_type(x.dtype, ())),) if combine else ()
        written = how.SerializeToString(deterministic=True)
        return Node(opcode, type, (x,), written, calls, self.mark)


def all_reduce(x: Node, groups: Groups, opcode: str) -> Node:
    """Combine the arrays of a group by a binary operation."""
    return x if groups.size == 1 else groups.node("all-reduce", x.type, x, opcode)


def list_groups(proto: pb.HloModuleProto) -> None:
    """List the devices of each group, in place: newer releases of jaxlib lose the compact form."""
    for computation in proto.computations:
        for i in computation.instructions:
            groups = i.collective_device_list
            if groups.HasField("iota_replica_group_list"):
                for row in _of_iota(groups.iota_replica_group_list):
                    groups.replica_groups.add(replica_ids=row)
                groups.ClearField("iota_replica_group_list")


def _of_iota(groups: pb.IotaReplicaGroupListProto) -> list[list[int]]:
    order = DeviceAssignment(tuple(groups.iota_reshape_dims), tuple(groups.iota_transpose_perm))
    return order.devices().reshape(-1, groups.num_devices_per_group).tolist()


def _of_mesh(groups: pb.MeshAxesReplicaGroupListProto) -> list[list[int]]:
    """Groups along axes of a mesh.

    An axis may be split into parts, from the slowest to the fastest: part (p, s) of an axis of size
    n is the middle dimension of ``reshape(p, s, n // (p * s))``.

    Source: ``xla::MeshAxesReplicaGroupList``.
    """
    mesh = groups.mesh
    sizes = [axis.size for axis in mesh.axes]
    bounds = [{1, size} for size in sizes]
    spans: list[tuple[int, int, int]] = []
    for axis in groups.axes:
        k, part = axis.mesh_axis_index, axis.sub_axis_info
        first = part.pre_size if axis.HasField("sub_axis_info") else 1
        last = first * part.size if axis.HasField("sub_axis_info") else sizes[k]
        bounds[k] |= {first, last}
        spans.append((k, first, last))
    parts = [(k, *pair) for k, of in enumerate(bounds) for pair in itertools.pairwise(sorted(of))]
    within = [
        d
        for k, first, last in spans
        for d, (of, start, stop) in enumerate(parts)
        if of == k and first <= start and stop <= last
    ]
    others = [d for d in range(len(parts)) if d not in within]
    iota = mesh.iota_transform
    reshape, perm = tuple(iota.reshape_dims), tuple(iota.transpose_perm)
    order = (
        DeviceAssignment(reshape, perm) if reshape else DeviceAssignment((math.prod(sizes),), (0,))
    )
    devices = np.array(mesh.device_ids) if mesh.device_ids else order.devices()
    split = devices.reshape([stop // start for _, start, stop in parts])
    size = math.prod(split.shape[d] for d in within)
    return split.transpose([*others, *within]).reshape(-1, size).tolist()


def _groups(i: pb.HloInstructionProto) -> list[list[int]]:
    """The devices of each group, in whichever form a release of XLA writes them."""
    if i.HasField("mesh_axes_replica_group_list"):
        return _of_mesh(i.mesh_axes_replica_group_list)
    for iota in i.iota_collective_device_list, i.collective_device_list.iota_replica_group_list:
        if iota.num_replica_groups:
            return _of_iota(iota)
    listed = [*i.collective_device_list.replica_groups, *i.replica_groups]
    return [list(group.replica_ids) for group in listed]


_OF_ALL = frozenset(["all-reduce", "all-gather", "all-to-all", "reduce-scatter"])
"""Collectives among all devices, if they name no groups."""


def exchanges(module: Module, count: int) -> list[Sequence[int]]:
    """The groups of so many devices that exchange data in a partitioned module."""
    result: list[Sequence[int]] = []
    for i in (i for c in module.proto.computations for i in c.instructions):
        groups = _groups(i)
        if not groups and i.opcode.removesuffix("-start") in _OF_ALL:
            result.append(range(count))
        result += groups
        result += [(pair.source, pair.target) for pair in i.source_target_pairs]
    return result


def is_sum(n: Node) -> bool:
    """Whether a node adds the arrays of a group."""
    return n.opcode == "all-reduce" and n.calls == (("add", array_type(n.dtype, ())),)


def as_product(n: Node, x: Node) -> Node:
    """In place of a sum over devices that add equal values."""
    how = pb.HloInstructionProto.FromString(n.params)
    groups = how.collective_device_list
    size = groups.iota_replica_group_list.num_devices_per_group
    return build.multiply(x, size or len(groups.replica_groups[0].replica_ids))


def all_max(x: Node, groups: Groups) -> Node:
    """The elementwise maximum of the arrays of a group; NaN where one has NaN.

    XLA's CPU target loses NaN when it reduces among devices. So the maximum is taken of integers in
    the order of the numbers, with NaN as the greatest.
    """
    dtype = x.dtype
    if groups.size == 1 or not dtype.is_floating_point:
        return all_reduce(x, groups, "maximum")
    wide = x if dtype.itemsize >= 4 else build.convert(x, torch.float32)
    wide = build.select(build.compare(wide, wide, "NE"), math.nan, wide)
    integer = torch.int64 if wide.dtype == torch.float64 else torch.int32
    found = _in_order(build.bitcast_convert(wide, integer))
    found = _in_order(all_reduce(found, groups, "maximum"))
    return build.convert(build.bitcast_convert(found, wide.dtype), dtype)


def _in_order(bits: Node) -> Node:
    """The bits of floats as integers in the order of the floats; it is its own inverse."""
    sign = build.binary("shift-right-arithmetic", bits, 8 * bits.dtype.itemsize - 1)
    return build.binary("xor", bits, build.binary("and", sign, torch.iinfo(bits.dtype).max))


def all_gather(x: Node, groups: Groups) -> Node:
    """The arrays of a group, stacked along a new first dimension."""
    row = build.reshape(x, (1, *x.dims))
    if groups.size == 1:
        return row
    if groups.partly:  # See NOTE [partly manual regions].
        return all_reduce(_at_own_place(row, groups), groups, "add")
    return groups.node("all-gather", array_type(x.dtype, (groups.size, *x.dims)), row, dims=[0])


def reduce_scatter(x: Node, groups: Groups) -> Node:
    """The sum of the arrays of a group; each device keeps the row of its position in the group."""
    value = x
    if groups.size > 1:
        type = array_type(x.dtype, (1, *x.dims[1:]))
        value = groups.node("reduce-scatter", type, x, "add", [0])
    return build.reshape(value, x.dims[1:])


def all_to_all(x: Node, groups: Groups) -> Node:
    """Row k goes to device k of the group; the row received from there becomes row k."""
    if groups.size == 1:
        return x
    if groups.partly:  # See NOTE [partly manual regions].
        stack = _at_own_place(build.reshape(x, (1, *x.dims)), groups)
        order = (1, 0, *range(2, len(stack.dims)))
        return reduce_scatter(build.transpose(stack, order), groups)
    return groups.node("all-to-all", x.type, x, dims=[0])


def collective_permute(x: Node, groups: Groups, places: Sequence[tuple[int, int]]) -> Node:
    """In each pair of positions in a group, the first device sends to the second.

    Devices that receive nothing get zeros.
    """
    if not places:
        return build.zeros(x.type)
    if groups.size == 1:
        return x
    how = pb.HloInstructionProto(channel_id=1)
    for row in groups.rows().tolist():
        for source, target in places:
            how.source_target_pairs.add(source=row[source], target=row[target])
    written = how.SerializeToString(deterministic=True)
    return Node("collective-permute", x.type, (x,), written, more=groups.mark)


def place_in_group(groups: Groups) -> Node:
    """The position of the device in its group, from 0, as an int64 scalar."""
    if groups.size == 1:
        return build.constant(0, torch.int64)
    n = groups.size
    if groups.partly:  # See NOTE [partly manual regions].
        place = build.divide(reduce_scatter(_numbers(np.arange(n)), groups), n)
    elif groups.order.listed is not None:
        table = _numbers(np.argsort(groups.order.devices()) % n)
        place = build.reshape(build.dynamic_slice(table, [_number()], (1,)), ())
    else:
        sizes, perm = groups.order.reshape, groups.order.perm
        number, position = _number(), build.constant(0, torch.int64)
        for k, d in enumerate(perm):
            own = build.divide(number, math.prod(sizes[d + 1 :]))
            own = build.binary("remainder", own, sizes[d])
            own = build.multiply(own, math.prod(sizes[p] for p in perm[k + 1 :]))
            position = build.add(position, own)
        place = build.binary("remainder", position, n)
    place.more = groups.mark
    return place


def _number() -> Node:
    """The number of the device."""
    return build.convert(Node("partition-id", array_type(torch.uint32, ())), torch.int64)


def _numbers(numbers: np.ndarray) -> Node:
    # Independent of any trace or transform that this happens in.
    with plain_tensors():
        return build.literal(torch.as_tensor(numbers))


def _at_own_place(row: Node, groups: Groups) -> Node:
    """Zeros, except for a row at the device's position in the group."""
    stack = build.zeros(array_type(row.dtype, (groups.size, *row.dims[1:])))
    start = [place_in_group(groups), *[build.constant(0, torch.int64)] * len(row.dims[1:])]
    return Node("dynamic-update-slice", stack.type, (stack, row, *start))
