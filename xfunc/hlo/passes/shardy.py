"""`to_shardy`: a module with its shardings written for Shardy instead of GSPMD.

GSPMD, XLA's older partitioner, reads ``OpSharding``s, which list devices. Shardy reads shardings
over the named axes of a mesh: here in the form in which XLA passes them through HLO, as frontend
attributes.

==================================  ================================================================
``Sharding``                        the same, with the sharding as an attribute
the two members of a shard group    the same, with an ``xla.sdy.ShardingGroup`` of each
``SPMDFullToShardShape`` and        ``xla.sdy.GlobalToLocalShape`` of all inputs of the region, a
``SPMDShardToFullShape``, with      call of a computation with a certain name, and
one device's program in between     ``xla.sdy.LocalToGlobalShape`` of all outputs
constants inside marked as manual   no mark
==================================  ================================================================

Source: ``xla/service/spmd/shardy``.
"""

from __future__ import annotations

from collections.abc import Iterator

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import add_copies, entry_of, fill, fresh_ids, instruction
from xfunc.hlo.instances import holding, separate
from xfunc.hlo.spmd.annotations import SHARDING, is_pair, is_region, is_tie
from xfunc.hlo.spmd.common_mesh import CommonMesh, common_mesh
from xfunc.hlo.spmd.shardy_regions import LEAVE, split_region
from xfunc.hlo.spmd.shardy_text import Writer

_SHARDING, _MESHES = "xla.sdy.sharding", "xla.sdy.meshes"
_GROUP = "xla.sdy.ShardingGroup"
_NOTHING = pb.ShapeProto(element_type=pb.TUPLE)


def to_shardy(proto: pb.HloModuleProto, count: int) -> CommonMesh | None:
    """Write the shardings of a whole program for Shardy, in place.

    Args:
        proto: of the module. Its shard groups are numbered (`xfunc.hlo.final`).
        count: the number of devices.

    Returns:
        The mesh of the shardings; None if there is no mesh in which all of them can be written,
        and nothing was changed.
    """
    every = (i for c in proto.computations for i in c.instructions)
    said = ((i.sharding, len(i.shape.dimensions)) for i in every if i.HasField("sharding"))
    mesh = common_mesh(said, count)
    if mesh is None:
        return None
    contents = Contents(proto)
    separate(contents, holding(contents, lambda i: i.custom_call_target == LEAVE))
    ids, write = fresh_ids(proto), Writer(mesh)
    made = pb.HloModuleProto(entry_computation_id=proto.entry_computation_id)
    for c in proto.computations:  # callees come first
        if is_region(c):
            add_copies(made.computations, [split_region(c, write, ids)])
        if is_pair(c):
            _write_group(c, write, ids)
        add_copies(made.computations, [c])
    for i in entry_of(made).instructions:
        if i.opcode == "parameter" and not i.HasField("sharding"):
            # With none, JAX 0.7.1 drops the mesh: it does not see that custom calls name it.
            i.sharding.type = pb.OpSharding.REPLICATED
    for c in made.computations:
        for i in c.instructions:
            if i.HasField("sharding"):
                _write_sharding(i, write)
    del proto.computations[:]
    add_copies(proto.computations, made.computations)
    proto.frontend_attributes.map[_MESHES] = write.meshes()
    return mesh


def _write_sharding(i: pb.HloInstructionProto, write: Writer) -> None:
    if i.opcode == "parameter":
        i.frontend_attributes.map[_SHARDING] = write.one(i)
    elif i.custom_call_target == SHARDING:
        i.frontend_attributes.map[_SHARDING] = write.several([i])
        i.ClearField("backend_config")
    i.ClearField("sharding")  # Only constants have others: they are manual.


def _write_group(c: pb.HloComputationProto, write: Writer, ids: Iterator[int]) -> None:
    """The members of a shard group are as open as values without annotations."""
    made: list[pb.HloInstructionProto] = []
    for i in c.instructions:
        made.append(i)
        if is_tie(i):
            member = instruction("custom-call", next(ids), _NOTHING, [i.id], of=i)
            member.custom_call_target, member.custom_call_api_version = _GROUP, 1
            member.custom_call_has_side_effect = True
            number = f"{i.sharding.shard_group_id} : i64"
            member.frontend_attributes.map["xla.sdy.sharding_group_id"] = number
            i.frontend_attributes.map[_SHARDING] = write.open(len(i.shape.dimensions))
            i.ClearField("custom_call_has_side_effect")
            i.ClearField("sharding")
            made.append(member)
    fill(c, made)
