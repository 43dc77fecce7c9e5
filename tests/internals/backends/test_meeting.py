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
processes.agreed = lambda name, *args: (met.append(name), agreed(name, *args))[1]
{PROGRAM}
print(met)
"""


def test_meeting_once_per_communicating_program(fresh: Server) -> None:
    for status, said, why in run(fresh, "same", NOTED):
        assert status == 0, why
        met = said.splitlines()[-1]
        assert met.startswith("['total', 'columns', 'device_put'"), met
        assert met.count("total") == met.count("columns") == 1


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
