"""Channels: the numbers that distinguish the collectives of a program.

On the CPU, the devices of a group meet under the channel's number. If two concurrent collectives
had the same number, a device of one could meet a device of the other.
"""

from __future__ import annotations

from itertools import count

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import opcodes
from xfunc.hlo.instances import holding, separate
from xfunc.hlo.spmd.collectives import AXES


def renumber_channels(proto: pb.HloModuleProto) -> None:
    """Give each collective of a whole program a unique channel, in place.

    A computation that is called in several places is copied for each, as XLA itself would copy it
    together with its channels.
    """
    found = holding(proto, _is_collective)
    if not found:
        return
    separate(proto, found)
    numbers = count(1)
    for c in proto.computations:
        for i in c.instructions:
            if _is_collective(i):
                i.channel_id = next(numbers)
            if AXES in i.frontend_attributes.map:
                del i.frontend_attributes.map[AXES]


def _is_collective(i: pb.HloInstructionProto) -> bool:
    return i.opcode in opcodes.COLLECTIVES
