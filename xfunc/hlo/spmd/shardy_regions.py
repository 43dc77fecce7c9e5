"""Manual regions as Shardy reads them: one device's program is a computation of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import computation, fill, instruction, with_id
from xfunc.hlo.spmd.annotations import MANUAL_BODY
from xfunc.hlo.spmd.shardy_text import Writer

ENTER, LEAVE = "SPMDFullToShardShape", "SPMDShardToFullShape"
_AXES = "xla.sdy.manual_axes"
_Instructions = list[pb.HloInstructionProto]


def split_region(
    c: pb.HloComputationProto, write: Writer, ids: Iterator[int]
) -> pb.HloComputationProto:
    """One device's program, of a computation that enters and leaves a region.

    Args:
        c: the computation, which is changed to call the result. Each value that enters or leaves
            has a constraint; see `xfunc.sharding.manual`.
        write: writes shardings.
        ids: unused ones.
    """
    enters, leaves, sources, exits = _borders(c)
    before, after, border = _outside(c)
    outside = before | after | border
    inside = [i for i in c.instructions if i.id not in outside]
    results = [i.operand_ids[0] for i in exits]
    body = computation(MANUAL_BODY, enters, inside, results, ids)

    axes = write.manual_axes(write.manual(exits[0]) - write.manual(leaves[0]))
    made: _Instructions = []

    def add(i: pb.HloInstructionProto, operands: Iterable[int], results: _Instructions) -> None:
        """Add an instruction with several results, which get the shapes and ids of these."""
        i.operand_ids.extend(operands)
        made.append(i)
        if len(results) == 1:
            i.id = results[0].id
            i.shape.CopyFrom(results[0].shape)
            return
        i.shape.element_type = pb.TUPLE
        for k, r in enumerate(results):
            i.shape.tuple_shapes.add().CopyFrom(r.shape)
            part = instruction("get-tuple-element", r.id, r.shape, [i.id], of=i)
            part.tuple_index = k
            made.append(part)

    def crossing(target: str) -> pb.HloInstructionProto:
        result = instruction("custom-call", next(ids), pb.ShapeProto(), of=leaves[0])
        result.custom_call_target, result.custom_call_api_version = target, 1
        result.custom_call_has_side_effect = True
        result.frontend_attributes.map[_AXES] = axes
        return result

    arguments = [with_id(i, next(ids)) for i in enters]
    if enters:
        enter = crossing("xla.sdy.GlobalToLocalShape")
        enter.frontend_attributes.map["xla.sdy.in_shardings"] = write.several(sources)
        add(enter, [i.operand_ids[0] for i in sources], arguments)
    call = instruction("call", next(ids), pb.ShapeProto(), of=leaves[0])
    call.called_computation_ids.append(body.id)
    call.frontend_attributes.map["inlineable"] = "false"
    results = [with_id(i, next(ids)) for i in exits]
    add(call, [i.id for i in arguments], results)
    leave = crossing("xla.sdy.LocalToGlobalShape")
    leave.frontend_attributes.map["xla.sdy.out_shardings"] = write.several(leaves)
    add(leave, [i.id for i in results], leaves)
    first = [i for i in c.instructions if i.id in before]
    last = [i for i in c.instructions if i.id in after and i.id not in border]
    fill(c, [*first, *made, *last])
    return body


def of_one_device(c: pb.HloComputationProto) -> set[int]:
    """The ids of one device's instructions, of a computation that enters and leaves a region."""
    return {i.id for i in c.instructions}.difference(*_outside(c))


def _borders(c: pb.HloComputationProto) -> tuple[_Instructions, ...]:
    """What enters, what leaves, and the constraints that these read."""
    by_id = {i.id: i for i in c.instructions}
    enters = [i for i in c.instructions if i.custom_call_target == ENTER]
    leaves = [i for i in c.instructions if i.custom_call_target == LEAVE]
    sources = [by_id[i.operand_ids[0]] for i in enters]
    exits = [by_id[i.operand_ids[0]] for i in leaves]
    return enters, leaves, sources, exits


def _outside(c: pb.HloComputationProto) -> tuple[set[int], set[int], set[int]]:
    """The ids of instructions before a region, after it, and on its border."""
    enters, leaves, sources, exits = _borders(c)
    before = _needed(c, [k for i in sources for k in i.operand_ids])
    after = _depending(c, {i.id for i in leaves})
    return before, after, {i.id for i in (*sources, *enters, *exits, *leaves)}


def _needed(c: pb.HloComputationProto, ids: Iterable[int]) -> set[int]:
    """The parameters, and the operands of these values."""
    result = {*ids, *(i.id for i in c.instructions if i.opcode == "parameter")}
    for i in reversed(c.instructions):
        if i.id in result:
            result.update(i.operand_ids)
    return result


def _depending(c: pb.HloComputationProto, ids: Iterable[int]) -> set[int]:
    """The result, and the users of these values."""
    result = {*ids, c.root_id}
    for i in c.instructions:
        if not result.isdisjoint(i.operand_ids):
            result.add(i.id)
    return result
