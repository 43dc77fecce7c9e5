"""Convolutions that XLA's partitioner computes rightly for every sharding of their operands.

Where devices divide positions, or the channels of groups, the partitioner exchanges the edges of
parts, and does so wrongly for many strides, dilations, paddings and sizes, by GSPMD and by Shardy:
values are wrong without an error, or a check ends the process (torch_xla 2.9, jaxlib 0.7.1). So
every device has all positions of both operands and of the result, and all channels of groups.
Batches, and the channels of a convolution without groups, are divided as the partitioner likes. A
convolution in groups of the batch, which is the gradient of a kernel with groups, runs whole on
every device: XLA gathers its operands even where only the batch is divided.

In a region that is manual over some axes only, the partitioner divides convolutions along the other
axes, as wrongly: there the constraints are those of the region's own values.
"""

from __future__ import annotations

from collections.abc import Iterator

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import wire
from xfunc.hlo.edit import fill, fresh_ids, instruction
from xfunc.hlo.spmd.annotations import SHARDING, manual_of, unspecified

# Fields of an instruction and of ``ConvolutionDimensionNumbers``, by XLA's protos.
_NUMBERS, _FEATURE_GROUPS, _BATCH_GROUPS = 16, 50, 58
_KERNEL_INPUT, _KERNEL_OUTPUT, _BATCH, _FEATURE, _OUT_BATCH, _OUT_FEATURE = 3, 4, 7, 8, 9, 10


def keep_space_whole(proto: pb.HloModuleProto) -> None:
    """Let the partitioner divide only some dimensions of convolutions, in place.

    Those in regions that are manual over all axes are one device's own.
    """
    ids = fresh_ids(proto)
    regions = _regions(proto)
    for c in proto.computations:
        manual = regions.get(c.id)
        if manual is not None and manual.type == pb.OpSharding.MANUAL:
            continue
        if not any(i.opcode == "convolution" for i in c.instructions):
            continue
        by_id = {i.id: i for i in c.instructions}
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            if i.opcode == "convolution":
                made += _constrained(i, by_id, ids, manual)
            else:
                made.append(i)
        fill(c, made)


def _regions(proto: pb.HloModuleProto) -> dict[int, pb.OpSharding]:
    """By the id of each computation in a manual region, the sharding of the region's values."""
    result: dict[int, pb.OpSharding] = {}
    for c in reversed(proto.computations):  # callees come first
        manual = manual_of(c) or result.get(c.id)
        if manual is not None:
            result[c.id] = manual
            for i in c.instructions:
                result.update((k, manual) for k in i.called_computation_ids)
    return result


def _constrained(
    i: pb.HloInstructionProto,
    by_id: dict[int, pb.HloInstructionProto],
    ids: Iterator[int],
    manual: pb.OpSharding | None,
) -> Iterator[pb.HloInstructionProto]:
    """A convolution between its constrained operands and its constrained result."""
    data = wire.fields(i.SerializeToString())
    numbers = wire.message(data, _NUMBERS)
    fields = (_BATCH, _FEATURE), (_KERNEL_INPUT, _KERNEL_OUTPUT), (_OUT_BATCH, _OUT_FEATURE)
    if wire.integer(data, _FEATURE_GROUPS, 1) > 1:
        fields = (_BATCH,), (), (_OUT_BATCH,)
    elif wire.integer(data, _BATCH_GROUPS, 1) > 1:
        fields = (), (), ()
    free = [[wire.integer(numbers, field) for field in of] for of in fields]
    for k, operand in enumerate([*i.operand_ids]):
        constraint = _constraint(by_id[operand], operand, free[k], next(ids), manual)
        i.operand_ids[k] = constraint.id
        yield constraint
    result = _constraint(i, next(ids), free[2], i.id, manual)
    i.id = result.operand_ids[0]
    yield i
    yield result


def _constraint(
    of: pb.HloInstructionProto,
    operand: int,
    free: list[int],
    id: int,
    manual: pb.OpSharding | None,
) -> pb.HloInstructionProto:
    result = instruction("custom-call", id, of.shape, [operand], of=of)
    result.custom_call_target = SHARDING
    result.custom_call_api_version = 1  # API_VERSION_ORIGINAL
    result.backend_config = unspecified(sorted(free)).encode()
    if manual is None:
        result.sharding.type = pb.OpSharding.REPLICATED
    else:
        result.sharding.CopyFrom(manual)
        groups = manual.tile_assignment_dimensions[-len(manual.last_tile_dims) :]
        result.sharding.tile_assignment_dimensions[:] = [1] * len(of.shape.dimensions) + groups
    return result
