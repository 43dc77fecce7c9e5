"""Annotations for XLA's partitioner: constraints and shard groups.

A constraint states the sharding of a value. A tie states that two values have the same sharding,
whatever it is: both are members of one *shard group*, and the partitioner gives the sharding that
it finds for one member to the other.

NOTE [ties have side effects]: a tie concerns both its members even if only one of them is used
afterwards, such as a gradient that leaves the program while the weight does not. XLA would remove
the other as dead code, and with it the tie. So ties are marked as having side effects; the
partitioner removes them when it is done.

NOTE [shard groups are calls]: xfunc's passes drop values that no result depends on, and would
separate the members of a group. So both members of a group are in a separate computation that takes
two values and returns them, and is called.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from xfunc.graph import build
from xfunc.graph.build import CustomCall
from xfunc.graph.graph import Graph
from xfunc.graph.graph import is_pair as is_pair_graph
from xfunc.graph.node import ArrayType, Node, unattributed
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.attributes import acting, attributes_of
from xfunc.hlo.edit import instruction
from xfunc.hlo.errors import InvalidHloError

SHARDING = "Sharding"
MANUAL_BODY = "xla.sdy.manual_computation_body"
"""How the name of one device's program begins, where it is written for Shardy."""
_AUTOMATIC = "xfunc_automatic"


def constrained(x: Node, sharding: pb.OpSharding, free: Sequence[int] = ()) -> Node:
    """The same value with a sharding; XLA chooses the sharding of the dimensions in `free`."""
    written = sharding.SerializeToString(deterministic=True)
    return Node("custom-call", x.type, (x,), CustomCall(SHARDING, unspecified(free), written))


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
    result = instruction("custom-call", id, x.shape, [x.id], of=x)
    result.custom_call_target = SHARDING
    result.sharding.type = pb.OpSharding.REPLICATED
    return result


def unspecified(dims: Sequence[int]) -> str:
    """The annotation that lets the partitioner shard some dimensions in any way."""
    return f"unspecified_dims=[{','.join(map(str, dims))}]" if dims else ""


def tie(a: Node, b: Node, *, automatic: bool = False) -> tuple[Node, Node]:
    """The same values, sharded alike; see NOTE [shard groups are calls].

    Args:
        a: a value.
        b: another of the same dimensions.
        automatic: whether xfunc added the group itself: `xfunc.hlo.final` can omit such groups.
    """
    first, second = build.call(pair(a.type, b.type, automatic), [a, b])
    return first, second


@functools.lru_cache(1024)
def pair(a: ArrayType, b: ArrayType, automatic: bool) -> Graph:
    """The function of two arrays that returns them, sharded alike."""
    if a.dims != b.dims:
        raise InvalidHloError(f"{a} and {b} cannot be sharded alike")  # XLA would abort the process
    sharding = pb.OpSharding(
        type=pb.OpSharding.UNKNOWN,
        is_shard_group=True,
        shard_group_id=1,  # `xfunc.hlo.final` gives the final one.
        shard_group_type=pb.OpSharding.AS,
    )
    how = CustomCall(SHARDING, sharding=sharding.SerializeToString(deterministic=True), tied=True)
    more = acting({_AUTOMATIC: "true"} if automatic else None)  # NOTE [ties have side effects]
    with unattributed():
        inputs = build.parameters([a, b])
        outputs = [Node("custom-call", x.type, (x,), how, more=more) for x in inputs]
    return Graph("tie", inputs, outputs)


def is_tie(i: pb.HloInstructionProto) -> bool:
    """Whether an instruction is a member of a shard group and nothing else."""
    return i.custom_call_target == SHARDING and i.sharding.is_shard_group


def is_pair(c: pb.HloComputationProto) -> bool:
    """Whether a computation does nothing but tie its two parameters."""
    return len(c.instructions) == 5 and sum(map(is_tie, c.instructions)) == 2


def is_region(c: pb.HloComputationProto) -> bool:
    """Whether a computation enters and leaves a manual region."""
    return any(i.custom_call_target == "SPMDShardToFullShape" for i in c.instructions)


def is_region_graph(graph: Graph) -> bool:
    """`is_region` of a graph."""
    return any(_target(n) == "SPMDShardToFullShape" for n in graph.nodes)


def _target(n: Node) -> str:
    return n.params.target if isinstance(n.params, CustomCall) else ""


def is_automatic_tie(n: Node) -> bool:
    """Whether a node calls a tie of its two operands that xfunc made automatically."""
    if n.opcode != "call":
        return False
    callee: Graph | None = n.calls[0].graph
    if callee is None or not is_pair_graph(callee):
        return False
    return any(_AUTOMATIC in attributes_of(o) for o in callee.outputs)


def manual_of(c: pb.HloComputationProto) -> pb.OpSharding | None:
    """The sharding of the values in a computation's manual region, or None without a region."""
    for i in c.instructions:
        if i.custom_call_target == "SPMDShardToFullShape":
            by_id = {x.id: x for x in c.instructions}
            return by_id[i.operand_ids[0]].sharding
    return None
