"""Names that the user gave to values, for policies to refer to.

A name is a ``copy`` with a frontend attribute. Before a policy is applied, names are moved to the
named values (`fold_names`); before a program is compiled, they are removed.
"""

from __future__ import annotations

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.computation import ComputationBuilder, Value
from xfunc.hlo.edit import bypass, entry_of, origin
from xfunc.hlo.module import Module

_NAME = "xfunc_name"
_SEPARATOR = "\n"


def named(body: ComputationBuilder, x: Value, name: str) -> Value:
    """The same value, with a name."""
    value, proto = body.instruction("copy", x.shape, [x])
    proto.frontend_attributes.map[_NAME] = name
    return value


def names_of(i: pb.HloInstructionProto) -> tuple[str, ...]:
    """The names of a value."""
    if not i.HasField("frontend_attributes"):
        return ()
    found = i.frontend_attributes.map
    return tuple(found[_NAME].split(_SEPARATOR)) if _NAME in found else ()


def fold_names(module: Module) -> Module:
    """The module with the names of its entry's values on the values themselves."""
    entry = module.entry
    copies = {i.id: i.operands[0].id for i in entry.instructions if _is_name(i.proto)}
    if not copies:
        return module
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    computation = entry_of(proto)
    names: dict[int, list[str]] = {}
    for k in copies:
        found = names_of(entry.by_id[k].proto)
        names.setdefault(origin(k, copies), []).extend(found)
    bypass(computation, copies)
    for i in computation.instructions:
        if i.id in names:
            every = dict.fromkeys([*names_of(i), *names[i.id]])
            i.frontend_attributes.map[_NAME] = _SEPARATOR.join(every)
    return Module(proto)


def strip_names(proto: pb.HloModuleProto) -> None:
    """Remove all names from a module, in place."""
    for c in proto.computations:
        copies: dict[int, int] = {}
        for i in c.instructions:
            if i.HasField("frontend_attributes") and _NAME in i.frontend_attributes.map:
                if _is_name(i):
                    copies[i.id] = i.operand_ids[0]
                else:
                    del i.frontend_attributes.map[_NAME]
                    if not i.frontend_attributes.map:
                        i.ClearField("frontend_attributes")
        bypass(c, copies)


def _is_name(i: pb.HloInstructionProto) -> bool:
    return i.opcode == "copy" and bool(names_of(i))
