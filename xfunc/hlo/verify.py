"""`verify`: is a module well formed?

Modules are checked before XLA sees them, because XLA's own errors do not name the instruction, and
some of them abort the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import entry_of
from xfunc.hlo.errors import InvalidHloError
from xfunc.hlo.shape import Shape

if TYPE_CHECKING:
    from xfunc.hlo.module import Module

PRED = Shape(torch.bool)
S32 = Shape(torch.int32)


def verify(module: Module) -> None:
    """Check the structure of a module.

    Ids and names are unique; operands are defined before they are used; roots and called
    computations exist, callees before their callers; parameters are numbered without gaps; and the
    shapes around tuples, calls, loops, branches and barriers agree, as does the entry's signature.
    Shape inference of other operations is left to XLA.

    Raises:
        InvalidHloError: names the instruction and its computation.
    """
    proto = module.proto
    _check_unique(proto)
    _check_calls(proto)
    signatures: dict[int, Signature] = {}
    for computation in proto.computations:
        signatures[computation.id] = _Checker(computation, signatures).check()
    if proto.entry_computation_id not in signatures:
        raise InvalidHloError(
            f"module {proto.name!r}: the entry computation {proto.entry_computation_id} is missing"
        )
    entry = entry_of(proto)
    _check_program_shape(entry.name, "program shape", entry.program_shape, signatures[entry.id])
    _check_program_shape(
        entry.name, "host program shape", proto.host_program_shape, signatures[entry.id]
    )


Signature = tuple[Sequence[Shape], Shape]
"""The shapes of a computation's parameters, and of its result."""


def mismatch(
    opcode: str,
    operands: Sequence[Shape],
    result: Shape,
    called: Sequence[Signature],
    tuple_index: int = 0,
) -> str | None:
    """The fault in the shapes of an instruction, or None.

    The only place with the rules: `verify` and the builder both use it.
    """
    match opcode:
        case "tuple":
            return _differ("result", result, "its operands make", Shape.of_tuple(operands))
        case "get-tuple-element":
            of = operands[0]
            if not of.is_tuple:
                return f"its operand is no tuple but {of}"
            if not 0 <= tuple_index < len(of.elements):
                return f"there is no element {tuple_index} in {of}"
            return _differ("result", result, "the element is", of.elements[tuple_index])
        case "opt-barrier":
            return _differ("result", result, "its operand is", operands[0])
        case "call":
            (parameters, returned) = called[0]
            if len(operands) != len(parameters):
                return f"it has {len(operands)} operands, the callee {len(parameters)} parameters"
            for k, (operand, parameter) in enumerate(zip(operands, parameters, strict=True)):
                if operand != parameter:
                    return f"operand {k} is {operand}, parameter {k} of the callee {parameter}"
            return _differ("result", result, "the callee returns", returned)
        case "while":
            (body, body_result), (condition, condition_result) = called
            return (
                _differ("result", result, "the initial value is", operands[0])
                or _differ("initial value", operands[0], "the body takes", *body)
                or _differ("initial value", operands[0], "the condition takes", *condition)
                or _differ("initial value", operands[0], "the body returns", body_result)
                or _differ("condition", condition_result, "it should be", PRED)
            )
        case "conditional":
            index, *arguments = operands
            if index not in (PRED, S32):
                return f"the branch index is {index}, it should be {PRED} or {S32}"
            if index == PRED and len(called) != 2:
                return f"a {PRED} chooses among 2 branches, there are {len(called)}"
            if len(arguments) != len(called):
                return f"it has {len(called)} branches and {len(arguments)} arguments for them"
            for k, ((parameters, returned), argument) in enumerate(
                zip(called, arguments, strict=True)
            ):
                found = _differ(
                    f"argument of branch {k}", argument, "the branch takes", *parameters
                ) or _differ("result", result, f"branch {k} returns", returned)
                if found:
                    return found
        case _:
            pass
    return None


def _differ(what: str, found: Shape, source: str, *expected: Shape) -> str | None:
    if (found,) == expected:
        return None
    if len(expected) != 1:
        return f"{source} {len(expected)} parameters, it should take 1"
    return f"its {what} is {found}, but {source} {expected[0]}"


# For opcodes that `mismatch` knows: operands and called computations; None means any number.
_ARITY: dict[str, tuple[int | None, int | None]] = {
    "tuple": (None, 0),
    "get-tuple-element": (1, 0),
    "opt-barrier": (1, 0),
    "call": (None, 1),
    "while": (1, 2),
    "conditional": (None, None),
}


class _Checker:
    """Checks one computation."""

    def __init__(
        self, proto: pb.HloComputationProto, signatures: dict[int, tuple[Sequence[Shape], Shape]]
    ) -> None:
        self.proto = proto
        self.signatures = signatures
        self.defined: dict[int, pb.HloInstructionProto] = {}
        self.shapes: dict[int, Shape] = {}

    def fail(self, instruction: pb.HloInstructionProto, problem: str) -> NoReturn:
        raise InvalidHloError(
            f"instruction {instruction.name!r} in computation {self.proto.name!r}: {problem}"
        )

    def shape(self, id: int) -> Shape:
        found = self.shapes.get(id)
        if found is None:
            try:
                found = self.shapes[id] = Shape.from_proto(self.defined[id].shape)
            except InvalidHloError as e:
                self.fail(self.defined[id], str(e))
        return found

    def check(self) -> Signature:
        parameters: dict[int, pb.HloInstructionProto] = {}
        for i in self.proto.instructions:
            for k in i.operand_ids:
                if k not in self.defined:
                    self.fail(i, f"operand {k} is not defined before it in this computation")
            self.defined[i.id] = i
            if i.opcode == "parameter":
                if i.parameter_number in parameters:
                    other = parameters[i.parameter_number].name
                    self.fail(i, f"{other!r} is parameter {i.parameter_number} too")
                parameters[i.parameter_number] = i
            elif i.opcode in _ARITY:
                self.check_shapes(i)
        for number, i in parameters.items():
            if not 0 <= number < len(parameters):
                self.fail(i, f"it is parameter {number} of only {len(parameters)}")
        if self.proto.root_id not in self.defined:
            raise InvalidHloError(
                f"computation {self.proto.name!r}: the root {self.proto.root_id} is missing"
            )
        shapes = [self.shape(parameters[k].id) for k in range(len(parameters))]
        return shapes, self.shape(self.proto.root_id)

    def check_shapes(self, i: pb.HloInstructionProto) -> None:
        n_operands, n_called = _ARITY[i.opcode]
        if n_operands is not None and len(i.operand_ids) != n_operands:
            self.fail(i, f"it has {len(i.operand_ids)} operands, not {n_operands}")
        if n_called is not None and len(i.called_computation_ids) != n_called:
            self.fail(i, f"it calls {len(i.called_computation_ids)} computations, not {n_called}")
        if i.opcode == "conditional" and not i.operand_ids:
            self.fail(i, "it has no branch index")
        found = mismatch(
            i.opcode,
            [self.shape(k) for k in i.operand_ids],
            self.shape(i.id),
            [self.signatures[c] for c in i.called_computation_ids],
            i.tuple_index,
        )
        if found:
            self.fail(i, found)


def _check_unique(module: pb.HloModuleProto) -> None:
    ids: dict[int, str] = {}
    names: set[str] = set()
    for c in module.computations:
        where = f"computation {c.name!r}"
        if c.id in ids:
            raise InvalidHloError(f"{where}: its id {c.id} is that of {ids[c.id]} too")
        ids[c.id] = where
        _check_name(c.name, where)
        for i in c.instructions:
            key, name = i.id, i.name
            if key in ids or name in names:
                where = f"instruction {name!r} in {where}"
                if key in ids:
                    raise InvalidHloError(f"{where}: its id {key} is that of {ids[key]} too")
                raise InvalidHloError(f"{where}: there is another instruction of this name")
            ids[key] = name
            names.add(name)
            _check_name(name, f"instruction {name!r} in {where}")
    for name, n in Counter(c.name for c in module.computations).items():
        if n > 1:
            raise InvalidHloError(f"there are {n} computations of the name {name!r}")


def _check_name(name: str, where: str) -> None:
    # XLA cuts the number off a name that it wants to make unique, and aborts the process if there
    # is none (xla/hlo/builder/xla_builder.cc: "Check failed: pos != npos").
    base, dot, number = name.rpartition(".")
    if not (base and dot and number.isascii() and number.isdigit()):
        raise InvalidHloError(f"{where}: its name does not end in a number, as in 'add.7'")


def _check_calls(module: pb.HloModuleProto) -> None:
    """Called computations exist and come before their callers, so there is no recursion."""
    position = {c.id: k for k, c in enumerate(module.computations)}
    for k, c in enumerate(module.computations):
        for i in c.instructions:
            for callee in i.called_computation_ids:
                where = f"instruction {i.name!r} in computation {c.name!r}"
                if callee not in position:
                    raise InvalidHloError(
                        f"{where}: it calls computation {callee}, which is missing"
                    )
                if position[callee] >= k:
                    name = module.computations[position[callee]].name
                    if _reaches(module, position, callee, c.id):
                        raise InvalidHloError(f"{where}: it calls {name!r}, which is recursion")
                    raise InvalidHloError(f"{where}: it calls {name!r}, which is defined after it")


def _reaches(module: pb.HloModuleProto, position: dict[int, int], start: int, goal: int) -> bool:
    todo, seen = [start], {start}
    while todo:
        here = todo.pop()
        if here == goal:
            return True
        for i in module.computations[position[here]].instructions:
            new = [c for c in i.called_computation_ids if c in position and c not in seen]
            seen.update(new)
            todo += new
    return False


def _check_program_shape(
    name: str, what: str, shape: pb.ProgramShapeProto, signature: Signature
) -> None:
    parameters, result = signature
    stated = [Shape.from_proto(p) for p in shape.parameters]
    if len(stated) != len(parameters):
        raise InvalidHloError(
            f"entry computation {name!r}: its {what} has {len(stated)} parameters, "
            f"the computation {len(parameters)}"
        )
    for k, (one, other) in enumerate(zip(stated, parameters, strict=True)):
        if one != other:
            raise InvalidHloError(
                f"entry computation {name!r}: parameter {k} is {other}, its {what} says {one}"
            )
    if (one := Shape.from_proto(shape.result)) != result:
        raise InvalidHloError(
            f"entry computation {name!r}: its result is {result}, its {what} says {one}"
        )
