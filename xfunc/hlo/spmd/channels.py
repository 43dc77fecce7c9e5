"""Channels: the numbers that distinguish the collectives of a program.

On the CPU, the devices of a group meet under the channel's number. If two concurrent collectives
had the same number, a device of one could meet a device of the other.
"""

from __future__ import annotations

from itertools import count

from xfunc.graph import opcodes
from xfunc.hlo.contents import Contents
from xfunc.hlo.instances import separate, with_callers
from xfunc.hlo.spmd.collectives import AXES


def renumber_channels(contents: Contents) -> None:
    """Give each collective of a whole program a unique channel, in place.

    A computation that is called in several places is copied for each, as XLA itself would copy it
    together with its channels.
    """
    found = [c.id for c, _ in contents.everywhere(opcodes.COLLECTIVES)]
    if not found:
        return
    separate(contents, with_callers(contents, found))
    numbers = count(1)
    for c in contents.proto.computations:
        for i in c.instructions:
            if i.opcode in opcodes.COLLECTIVES:
                i.channel_id = next(numbers)
            if AXES in i.frontend_attributes.map:
                del i.frontend_attributes.map[AXES]
