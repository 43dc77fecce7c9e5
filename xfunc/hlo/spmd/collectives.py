"""Instructions for communication between the devices of a group in a manual region.

NOTE [partly manual regions]: XLA's partitioner aborts the process if it meets an all-gather or an
all-to-all in a region that is manual over only some of the devices' axes, and does not support the
partition id there. These three are then expressed as sums.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.computation import ComputationBuilder, Value
from xfunc.hlo.edit import constant, fill, fresh_ids, instruction
from xfunc.hlo.module import Module
from xfunc.hlo.ops import bitcast_convert
from xfunc.hlo.plain import plain_tensors
from xfunc.hlo.shape import Shape
from xfunc.hlo.spmd.tiles import Order

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
    order: Order
    axes: tuple[str, ...]
    partly: bool = False

    def rows(self) -> np.ndarray:
        """The devices, one group in each row."""
        return self.order.devices().reshape(-1, self.size)

    def mark(self, proto: pb.HloInstructionProto) -> None:
        """State along which axes an instruction communicates, or its result differs."""
        proto.frontend_attributes.map[AXES] = ",".join(self.axes)

    def write(self, proto: pb.HloInstructionProto) -> None:
        """Make an instruction communicate in these groups."""
        self.mark(proto)
        proto.channel_id = 1  # `renumber_channels` gives the final one.
        proto.use_global_device_ids = proto.opcode != "all-to-all"  # which has no other numbers
        groups = proto.collective_device_list
        if self.order.listed is None:
            iota = groups.iota_replica_group_list
            iota.num_devices_per_group = self.size
            iota.num_replica_groups = math.prod(self.order.reshape) // self.size
            iota.iota_reshape_dims.extend(self.order.reshape)
            iota.iota_transpose_perm.extend(self.order.perm)
        else:
            for row in self.rows().tolist():
                groups.replica_groups.add(replica_ids=row)


def all_reduce(body: ComputationBuilder, x: Value, groups: Groups, opcode: str) -> Value:
    """Combine the arrays of a group by a binary operation."""
    if groups.size == 1:
        return x
    value, proto = body.instruction("all-reduce", x.shape, [x])
    proto.called_computation_ids.append(_combine(body, x.shape.dtype, opcode))
    groups.write(proto)
    return value


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
    order = Order(tuple(groups.iota_reshape_dims), tuple(groups.iota_transpose_perm))
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
    order = Order(reshape, perm) if reshape else Order((math.prod(sizes),), (0,))
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
    found: list[Sequence[int]] = []
    for i in (i for c in module.proto.computations for i in c.instructions):
        groups = _groups(i)
        if not groups and i.opcode.removesuffix("-start") in _OF_ALL:
            found.append(range(count))
        found += groups
        found += [(pair.source, pair.target) for pair in i.source_target_pairs]
    return found


def without_sums(module: Module, equal: Collection[int]) -> Module:
    """The module with products in place of sums over devices that add equal values.

    Args:
        module: not changed.
        equal: ids of collectives.
    """
    adds = {c.id for c in module.computations if c.root.opcode == "add"}
    new = fresh_ids(module.proto)
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    for c in proto.computations:
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            if i.opcode == "all-reduce" and i.id in equal and i.called_computation_ids[0] in adds:
                made += _as_product(i, new)
            else:
                made.append(i)
        if len(made) > len(c.instructions):
            fill(c, made)
    return Module(proto)


def _as_product(i: pb.HloInstructionProto, new: Iterator[int]) -> list[pb.HloInstructionProto]:
    groups = i.collective_device_list
    n = groups.iota_replica_group_list.num_devices_per_group
    n = n or len(groups.replica_groups[0].replica_ids)
    size = constant(n, next(new), Shape.from_proto(i.shape).dtype)
    all_sizes = instruction("broadcast", next(new), i.shape, [size.id])
    product = instruction("multiply", i.id, i.shape, [i.operand_ids[0], all_sizes.id], of=i)
    return [size, all_sizes, product]


def all_max(body: ComputationBuilder, x: Value, groups: Groups) -> Value:
    """The elementwise maximum of the arrays of a group; NaN where one has NaN.

    XLA's CPU target loses NaN when it reduces among devices. So the maximum is taken of integers in
    the order of the numbers, with NaN as the greatest.
    """
    dtype = x.shape.dtype
    if groups.size == 1 or not dtype.is_floating_point:
        return all_reduce(body, x, groups, "maximum")
    wide = x if dtype.itemsize >= 4 else body.convert(x, torch.float32)
    kind = wide.shape.dtype
    nan = body.broadcast(body.constant(math.nan, kind), x.shape.dims)
    wide = body.select(body.compare(wide, wide, "NE"), nan, wide)
    integer = torch.int64 if kind == torch.float64 else torch.int32
    found = _in_order(body, bitcast_convert(body, wide, integer))
    found = _in_order(body, all_reduce(body, found, groups, "maximum"))
    return body.convert(bitcast_convert(body, found, kind), dtype)


def _in_order(body: ComputationBuilder, bits: Value) -> Value:
    """The bits of floats as integers in the order of the floats; it is its own inverse."""
    dtype, dims = bits.shape.dtype, bits.shape.dims

    def constant(n: int) -> Value:
        return body.broadcast(body.constant(n, dtype), dims)

    width = constant(8 * dtype.itemsize - 1)
    sign, _ = body.instruction("shift-right-arithmetic", bits.shape, [bits, width])
    flip, _ = body.instruction("and", bits.shape, [sign, constant(torch.iinfo(dtype).max)])
    return body.instruction("xor", bits.shape, [bits, flip])[0]


def all_gather(body: ComputationBuilder, x: Value, groups: Groups) -> Value:
    """The arrays of a group, stacked along a new first dimension."""
    row = body.reshape(x, (1, *x.shape.dims))
    if groups.size == 1:
        return row
    if groups.partly:  # See NOTE [partly manual regions].
        return all_reduce(body, _at_own_place(body, row, groups), groups, "add")
    shape = Shape(x.shape.dtype, (groups.size, *x.shape.dims))
    value, proto = body.instruction("all-gather", shape, [row])
    proto.dimensions.append(0)
    groups.write(proto)
    return value


def reduce_scatter(body: ComputationBuilder, x: Value, groups: Groups) -> Value:
    """The sum of the arrays of a group; each device keeps the row of its position in the group."""
    value = x
    if groups.size > 1:
        shape = Shape(x.shape.dtype, (1, *x.shape.dims[1:]))
        value, proto = body.instruction("reduce-scatter", shape, [x])
        proto.dimensions.append(0)
        proto.called_computation_ids.append(_combine(body, x.shape.dtype, "add"))
        groups.write(proto)
    return body.reshape(value, x.shape.dims[1:])


def all_to_all(body: ComputationBuilder, x: Value, groups: Groups) -> Value:
    """Row k goes to device k of the group; the row received from there becomes row k."""
    if groups.size == 1:
        return x
    if groups.partly:  # See NOTE [partly manual regions].
        n = len(x.shape.dims)
        stack = _at_own_place(body, body.reshape(x, (1, *x.shape.dims)), groups)
        shape = Shape(x.shape.dtype, (groups.size, *x.shape.dims))
        turned, proto = body.instruction("transpose", shape, [stack])
        proto.dimensions.extend([1, 0, *range(2, n + 1)])
        return reduce_scatter(body, turned, groups)
    value, proto = body.instruction("all-to-all", x.shape, [x])
    proto.dimensions.append(0)
    groups.write(proto)
    return value


def collective_permute(
    body: ComputationBuilder, x: Value, groups: Groups, places: Sequence[tuple[int, int]]
) -> Value:
    """In each pair of positions in a group, the first device sends to the second.

    Devices that receive nothing get zeros.
    """
    if not places:
        return body.zeros(x.shape)
    if groups.size == 1:
        return x
    value, proto = body.instruction("collective-permute", x.shape, [x])
    proto.channel_id = 1
    groups.mark(proto)
    for row in groups.rows().tolist():
        for source, target in places:
            proto.source_target_pairs.add(source=row[source], target=row[target])
    return value


def place_in_group(body: ComputationBuilder, groups: Groups) -> Value:
    """The position of the device in its group, from 0, as an int64 scalar."""
    if groups.size == 1:
        return body.constant(0, torch.int64)
    n = groups.size
    if groups.partly:  # See NOTE [partly manual regions].
        total = reduce_scatter(body, _numbers(body, np.arange(n)), groups)
        place, proto = _arithmetic(body, "divide", total, n)
    elif groups.order.listed is not None:
        table = _numbers(body, np.argsort(groups.order.devices()) % n)
        place, proto = body.instruction(
            "reshape", Shape(torch.int64), [body.dynamic_slice(table, [_number(body)], [1])]
        )
    else:
        sizes, perm = groups.order.reshape, groups.order.perm
        number, position = _number(body), body.constant(0, torch.int64)
        for k, d in enumerate(perm):
            own, _ = _arithmetic(body, "divide", number, math.prod(sizes[d + 1 :]))
            own, _ = _arithmetic(body, "remainder", own, sizes[d])
            own, _ = _arithmetic(body, "multiply", own, math.prod(sizes[p] for p in perm[k + 1 :]))
            position = body.add(position, own)
        place, proto = _arithmetic(body, "remainder", position, n)
    groups.mark(proto)
    return place


def _number(body: ComputationBuilder) -> Value:
    """The number of the device."""
    return body.convert(body.instruction("partition-id", Shape(torch.uint32))[0], torch.int64)


def _numbers(body: ComputationBuilder, numbers: np.ndarray) -> Value:
    # Independent of any trace or transform that this happens in.
    with plain_tensors():
        return body.literal(torch.as_tensor(numbers))


def _arithmetic(
    body: ComputationBuilder, opcode: str, x: Value, n: int
) -> tuple[Value, pb.HloInstructionProto]:
    return body.instruction(opcode, x.shape, [x, body.constant(n, torch.int64)])


def _at_own_place(body: ComputationBuilder, row: Value, groups: Groups) -> Value:
    """Zeros, except for a row at the device's position in the group."""
    stack = body.zeros(Shape(row.shape.dtype, (groups.size, *row.shape.dims[1:])))
    zero = body.constant(0, torch.int64)
    start = [place_in_group(body, groups), *(zero for _ in row.shape.dims[1:])]
    return body.dynamic_update_slice(stack, row, start)


def _combine(body: ComputationBuilder, dtype: torch.dtype, opcode: str) -> int:
    scalar = Shape(dtype)
    inner = body.module.computation(opcode)
    operands = [inner.parameter(scalar), inner.parameter(scalar)]
    return inner.build(inner.instruction(opcode, scalar, operands)[0]).id
