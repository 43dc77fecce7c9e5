"""Instructions by which devices communicate: those of a group among themselves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.builder import ComputationBuilder, Value
from xfunc.hlo.shape import Shape
from xfunc.hlo.tiles import Order

AXES = "xfunc_axes"
"""Frontend attribute of what differs from device to device: the mesh axes along which it does.

Of a collective: the axes along which its groups extend.
"""

DEVICES = "xfunc_devices"
"""Frontend attribute of what leaves a manual region: the number of devices of its mesh."""


@dataclasses.dataclass(frozen=True)
class Groups:
    """All devices, in groups of equal size.

    Attributes:
        size: of a group.
        order: of the devices, group by group.
        axes: the mesh axes along which a group extends.
    """

    size: int
    order: Order
    axes: tuple[str, ...]

    def rows(self) -> np.ndarray:
        """The devices, one group in each row."""
        return self.order.devices().reshape(-1, self.size)

    def write(self, proto: pb.HloInstructionProto) -> None:
        """Let an instruction communicate in these groups."""
        proto.channel_id = 1  # `renumber_channels` gives the final one.
        proto.use_global_device_ids = True
        proto.frontend_attributes.map[AXES] = ",".join(self.axes)
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
    value, proto = body._add("all-reduce", x.shape, [x])
    proto.called_computation_ids.append(_combine(body, x.shape.dtype, opcode))
    groups.write(proto)
    return value


def all_gather(body: ComputationBuilder, x: Value, groups: Groups) -> Value:
    """The arrays of a group, stacked along a new first dimension."""
    one = body.reshape(x, (1, *x.shape.dims))
    shape = Shape(x.shape.dtype, (groups.size, *x.shape.dims))
    value, proto = body._add("all-gather", shape, [one])
    proto.dimensions.append(0)
    groups.write(proto)
    return value


def reduce_scatter(body: ComputationBuilder, x: Value, groups: Groups) -> Value:
    """The sum of the arrays of a group; each device keeps the row of its place in the group."""
    shape = Shape(x.shape.dtype, (1, *x.shape.dims[1:]))
    value, proto = body._add("reduce-scatter", shape, [x])
    proto.dimensions.append(0)
    proto.called_computation_ids.append(_combine(body, x.shape.dtype, "add"))
    groups.write(proto)
    return body.reshape(value, x.shape.dims[1:])


def all_to_all(body: ComputationBuilder, x: Value, groups: Groups) -> Value:
    """Row k goes to device k of the group; what it gets from there becomes row k."""
    value, proto = body._add("all-to-all", x.shape, [x])
    proto.dimensions.append(0)
    groups.write(proto)
    proto.ClearField("use_global_device_ids")  # It has no such mode.
    return value


def collective_permute(
    body: ComputationBuilder,
    x: Value,
    pairs: Sequence[tuple[int, int]],
    axes: Sequence[str],
) -> Value:
    """Each source sends to its target, by device numbers; who gets nothing has zeros."""
    value, proto = body._add("collective-permute", x.shape, [x])
    proto.channel_id = 1
    proto.frontend_attributes.map[AXES] = ",".join(axes)
    for source, target in pairs:
        proto.source_target_pairs.add(source=source, target=target)
    return value


def place_in_group(body: ComputationBuilder, groups: Groups) -> Value:
    """Which of its group the device is, from 0, as an int64 scalar."""
    number = body.convert(body._add("partition-id", Shape(torch.uint32))[0], torch.int64)
    order = groups.order
    if order.listed is not None:
        table = torch.from_numpy(np.argsort(order.devices()) % groups.size)
        one = body.dynamic_slice(body.literal(table), [number], [1])
        place, proto = body._add("reshape", Shape(torch.int64), [one])
    else:
        position = body.constant(0, torch.int64)
        for k, dim in enumerate(order.perm):
            step = math.prod(order.reshape[dim + 1 :])
            own = _arithmetic(body, "divide", number, step)
            own = _arithmetic(body, "remainder", own, order.reshape[dim])
            weight = math.prod(order.reshape[p] for p in order.perm[k + 1 :])
            position = body.add(position, _arithmetic(body, "multiply", own, weight))
        size = body.constant(groups.size, torch.int64)
        place, proto = body._add("remainder", Shape(torch.int64), [position, size])
    proto.frontend_attributes.map[AXES] = ",".join(groups.axes)
    return place


def _arithmetic(body: ComputationBuilder, opcode: str, x: Value, n: int) -> Value:
    return body._add(opcode, x.shape, [x, body.constant(n, torch.int64)])[0]


def _combine(body: ComputationBuilder, dtype: torch.dtype, opcode: str) -> int:
    scalar = Shape(dtype)
    inner = body.module.computation(opcode)
    operands = [inner.parameter(scalar), inner.parameter(scalar)]
    return inner.build(inner._add(opcode, scalar, operands)[0]).id
