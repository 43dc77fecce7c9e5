"""A digest of a module's function, equal in all processes that trace the same function."""

from __future__ import annotations

import hashlib
import re

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.module import Module

_CALLBACK = re.compile(rb'^\{name = "python \d+"\}$')
"""How a custom call names a function of Python: by a number that counts those of the process."""


def fingerprint(module: Module) -> str:
    """Digest of a module, without names, the numbers of instructions, and lines of the user."""
    proto = module.proto
    places = {
        x.id: k for k, x in enumerate(y for c in proto.computations for y in (c, *c.instructions))
    }
    found = hashlib.sha256()
    copy = pb.HloInstructionProto()
    for c in proto.computations:
        found.update(b"computation %d" % places[c.root_id])
        for i in c.instructions:
            copy.CopyFrom(i)
            for field in "id", "name", "metadata":
                copy.ClearField(field)
            for ids in copy.operand_ids, copy.called_computation_ids, copy.control_predecessor_ids:
                ids[:] = [places[k] for k in ids]
            if _CALLBACK.match(copy.backend_config):
                copy.backend_config = b""
            data = copy.SerializeToString(deterministic=True)
            found.update(b"%d " % len(data) + data)
    return found.hexdigest()
