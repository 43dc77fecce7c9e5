"""Names that the user gave to values, for policies to refer to.

A name is a ``copy`` with a frontend attribute. Before a policy is applied, names are moved to the
named values (`xfunc.remat.names`); before a program is compiled, they are removed.
"""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import bypass

NAME = "xfunc_name"


def strip_names(proto: pb.HloModuleProto) -> None:
    """Remove all names from a module, in place."""
    for c in proto.computations:
        copies: dict[int, int] = {}
        for i in c.instructions:
            if i.HasField("frontend_attributes") and NAME in i.frontend_attributes.map:
                if i.opcode == "copy":
                    copies[i.id] = i.operand_ids[0]
                else:
                    del i.frontend_attributes.map[NAME]
                    if not i.frontend_attributes.map:
                        i.ClearField("frontend_attributes")
        bypass(c, copies)
