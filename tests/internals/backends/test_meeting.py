"""Programs that communicate between processes are begun together."""

from __future__ import annotations

import pytest

from tests.processes.test_distributed_order import PROGRAM, run
from tests.support.fresh import Server
from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd.collectives import exchanges

NOTED = f"""
from xfunc.backends import processes
met, agreed = [], processes.agreed
processes.agreed = lambda name, *args, **kw: (met.append(name), agreed(name, *args, **kw))[1]
{PROGRAM}
print(met)
"""


def test_meeting_once_per_communicating_program(fresh: Server) -> None:
    for status, said, why in run(fresh, "same", NOTED):
        assert status == 0, why
        met = said.splitlines()[-1]
        assert met.startswith("['total', 'columns', 'device_put'"), met  # `rows` stays in one.
        assert met.count("total") == met.count("columns") == 1


def of_mesh(
    sizes: list[int], axes: list[int | tuple[int, int, int]], devices: list[int] | None = None
) -> pb.MeshAxesReplicaGroupListProto:
    """Groups along axes, or along parts of them: axis, product of the slower parts, size."""
    groups = pb.MeshAxesReplicaGroupListProto()
    for size in sizes:
        groups.mesh.axes.add(size=size)
    groups.mesh.device_ids.extend(devices or [])
    for axis in axes:
        if isinstance(axis, int):
            groups.axes.add(mesh_axis_index=axis)
        else:
            k, before, size = axis
            groups.axes.add(mesh_axis_index=k).sub_axis_info.MergeFrom(
                pb.AxisRefProto.SubAxis(pre_size=before, size=size)
            )
    return groups


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        (of_mesh([2, 2], [1]), [[0, 1], [2, 3]]),
        (of_mesh([2, 2], [0]), [[0, 2], [1, 3]]),
        (of_mesh([2, 2], [1, 0]), [[0, 2, 1, 3]]),
        (of_mesh([2, 2], [1], [3, 1, 2, 0]), [[3, 1], [2, 0]]),
        (of_mesh([4], [(0, 1, 2)]), [[0, 2], [1, 3]]),
        (of_mesh([4], [(0, 2, 2)]), [[0, 1], [2, 3]]),
        (of_mesh([1, 8], [(1, 2, 2)]), [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (of_mesh([8], [(0, 4, 2), (0, 1, 2)]), [[0, 4, 1, 5], [2, 6, 3, 7]]),
    ],
)
def test_exchanges_groups_along_mesh_axes(
    groups: pb.MeshAxesReplicaGroupListProto, wanted: list[list[int]]
) -> None:
    proto = pb.HloModuleProto()
    i = proto.computations.add().instructions.add(opcode="all-reduce")
    i.mesh_axes_replica_group_list.CopyFrom(groups)
    assert exchanges(Module(proto), sum(map(len, wanted))) == wanted


def test_exchanges_groups_in_compact_form_of_newer_releases() -> None:
    proto = pb.HloModuleProto()
    i = proto.computations.add().instructions.add(opcode="all-reduce")
    iota = i.iota_collective_device_list
    iota.num_replica_groups = iota.num_devices_per_group = 2
    iota.iota_reshape_dims.extend([2, 2])
    iota.iota_transpose_perm.extend([1, 0])
    assert exchanges(Module(proto), 4) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("opcode", "groups", "pairs", "wanted"),
    [
        ("all-reduce", [[0, 2], [1, 3]], [], [[0, 2], [1, 3]]),
        ("all-gather-start", [], [], [[0, 1, 2, 3]]),
        ("collective-permute", [], [(0, 3)], [[0, 3]]),
        ("add", [], [], []),
    ],
)
def test_exchanges_groups_by_opcode(
    opcode: str, groups: list[list[int]], pairs: list[tuple[int, int]], wanted: list[list[int]]
) -> None:
    proto = pb.HloModuleProto()
    i = proto.computations.add().instructions.add(opcode=opcode)
    for group in groups:
        i.replica_groups.add(replica_ids=group)
    for source, target in pairs:
        i.source_target_pairs.add(source=source, target=target)
    assert [list(group) for group in exchanges(Module(proto), 4)] == wanted
