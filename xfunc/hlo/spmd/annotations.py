"""Annotations for XLA's partitioner: constraints and ties.

A constraint states the sharding of a value. A tie states that two values have the same sharding,
whatever it is: both are members of one *shard group*, and the partitioner gives the sharding that
it finds for one member to the other.

NOTE [ties have side effects]: a tie concerns both its members even if only one of them is used
afterwards, such as a gradient that leaves the program while the weight does not. XLA would remove
the other as dead code, and with it the tie. So ties are marked as having side effects; the
partitioner removes them when it is done.

NOTE [ties come in pairs]: xfunc's passes keep only what results are computed from, and would take a
pair apart. So both members of a group are in a separate computation that takes two values and
returns them, and is called.
"""

from __future__ import annotations

from collections.abc import Sequence

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.computation import ComputationBuilder, Value
from xfunc.hlo.edit import instruction
from xfunc.hlo.errors import InvalidHloError

SHARDING = "Sharding"
MANUAL_BODY = "xla.sdy.manual_computation_body"
"""How the name of one device's program begins, where it is written for Shardy."""
_AUTOMATIC = "xfunc_automatic"


def constrain(
    body: ComputationBuilder, x: Value, sharding: pb.OpSharding, free: Sequence[int] = ()
) -> Value:
    """The same value with a sharding; XLA chooses the sharding of the dimensions in `free`."""
    return body.custom_call(SHARDING, [x], x.shape, sharding=sharding, config=unspecified(free))


def run_on_one_device(i: pb.HloInstructionProto) -> None:
    """Let only the first device run an instruction; the partitioner hands its results to others."""
    parts = [i.sharding.tuple_shardings.add() for _ in i.shape.tuple_shapes]
    i.sharding.type = pb.OpSharding.TUPLE if parts else pb.OpSharding.MAXIMAL
    for part in parts or [i.sharding]:
        part.type = pb.OpSharding.MAXIMAL
        part.tile_assignment_dimensions.append(1)
        part.tile_assignment_devices.append(0)


def gathered(x: pb.HloInstructionProto, id: int) -> pb.HloInstructionProto:
    """A new instruction: an array, whole on every device."""
    made = instruction("custom-call", id, x.shape, [x.id], of=x)
    made.custom_call_target = SHARDING
    made.sharding.type = pb.OpSharding.REPLICATED
    return made


def unspecified(dims: Sequence[int]) -> str:
    """The annotation that lets the partitioner shard some dimensions in any way."""
    return f"unspecified_dims=[{','.join(map(str, dims))}]" if dims else ""


def tie(
    body: ComputationBuilder, a: Value, b: Value, *, automatic: bool = False
) -> tuple[Value, Value]:
    """The same values, sharded alike; see NOTE [ties come in pairs].

    Args:
        body: the computation to add to.
        a: a value.
        b: another of the same dimensions.
        automatic: whether xfunc tied them automatically: `settle_groups` may be told to omit such
            ties.
    """
    inner = body.module.computation("tie")
    values = [inner.parameter(x.shape) for x in (a, b)]
    pair = inner.build(inner.tuple(tied(inner, *values, automatic=automatic)))
    both = body.call(pair, [a, b])
    return body.get_tuple_element(both, 0), body.get_tuple_element(both, 1)


def tied(body: ComputationBuilder, a: Value, b: Value, *, automatic: bool) -> tuple[Value, Value]:
    """The two parameters of a computation that does nothing else, sharded alike."""
    if a.shape.dims != b.shape.dims or a.shape.is_tuple or b.shape.is_tuple:
        raise InvalidHloError(  # XLA would abort the process.
            f"computation {body.name!r}: {a.shape} and {b.shape} cannot be sharded alike"
        )
    sharding = pb.OpSharding(
        type=pb.OpSharding.UNKNOWN,
        is_shard_group=True,
        # It distinguishes groups of one computation; `settle_groups` assigns the final one.
        shard_group_id=body.module.new_id(),
        shard_group_type=pb.OpSharding.AS,
    )
    attributes = {_AUTOMATIC: "true"} if automatic else {}
    first, second = (
        body.custom_call(
            # See NOTE [ties have side effects].
            SHARDING,
            [x],
            x.shape,
            side_effect=True,
            attributes=attributes,
            sharding=sharding,
        )
        for x in (a, b)
    )
    return first, second


def is_tie(i: pb.HloInstructionProto) -> bool:
    """Whether an instruction is a member of a shard group and nothing else."""
    return i.custom_call_target == SHARDING and i.sharding.is_shard_group


def is_automatic(i: pb.HloInstructionProto) -> bool:
    """Whether xfunc made a tie automatically."""
    return _AUTOMATIC in i.frontend_attributes.map


def is_pair(c: pb.HloComputationProto) -> bool:
    """Whether a computation does nothing but tie its two parameters."""
    return len(c.instructions) == 5 and sum(map(is_tie, c.instructions)) == 2


def is_region(c: pb.HloComputationProto) -> bool:
    """Whether a computation enters and leaves a manual region."""
    return any(i.custom_call_target == "SPMDShardToFullShape" for i in c.instructions)


def manual_of(c: pb.HloComputationProto) -> pb.OpSharding | None:
    """The sharding of one of the values in a manual region that a computation enters and leaves."""
    for i in c.instructions:
        if i.custom_call_target == "SPMDShardToFullShape":
            by_id = {x.id: x for x in c.instructions}
            return by_id[i.operand_ids[0]].sharding
    return None


def is_manual_body(c: pb.HloComputationProto) -> bool:
    """Whether a computation is one device's program, written for Shardy."""
    return c.name.startswith(MANUAL_BODY)
