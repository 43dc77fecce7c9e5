"""`verify`: is a module well formed?

Modules are checked before XLA sees them, because XLA's own errors do not name the instruction, and
some of them abort the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch

from xfunc.graph import opcodes
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import entry_of
from xfunc.hlo.errors import InvalidHloError
from xfunc.hlo.shape import Shape

if TYPE_CHECKING:
    from xfunc.hlo.module import Module

PRED = Shape(torch.bool)
S32 = Shape(torch.int32)

Signature = tuple[Sequence[Shape], Shape]
"""The shapes of a computation's parameters, and of its result."""


def verify(module: Module) -> dict[int, Signature]:
    """Check the structure of a module; returns the signatures of its computations.

    Ids and names are unique; operands are defined before they are used; roots and called
    computations exist, callees before their callers; parameters are numbered without gaps; and the
    shapes around tuples, calls, loops, branches and barriers agree, as does the entry's signature.
    Shape inference of other operations is left to XLA.

    Args:
        module: to check.

    Raises:
        InvalidHloError: names the instruction and its computation.
    """
    proto = module.proto
    result = _Checker(proto).run()
    if proto.entry_computation_id not in result:
        raise InvalidHloError(
            f"module {proto.name!r}: the entry computation {proto.entry_computation_id} is missing"
        )
    entry = entry_of(proto)
    _check_program_shape(entry.name, "program shape", entry.program_shape, result[entry.id])
    _check_program_shape(
        entry.name, "host program shape", proto.host_program_shape, result[entry.id]
    )
    return result


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
    """Checks the computations of a module."""

    def __init__(self, module: pb.HloModuleProto) -> None:
        self.module = module
        self.signatures: dict[int, Signature] = {}
        self.ids: set[int] = set()
        self.names: set[str] = set()

    def run(self) -> dict[int, Signature]:
        for c in self.module.computations:
            instructions = list(c.instructions)
            names = [i.name for i in instructions]
            n_ids, n_names = len(self.ids) + 1 + len(names), len(self.names) + len(names)
            self.ids.add(c.id)
            self.ids.update([i.id for i in instructions])
            self.names.update(names)
            if len(self.ids) < n_ids or len(self.names) < n_names:
                _fail_of_twins(self.module)
            for name in names:
                if not _is_numbered(name):
                    _fail_of_name(f"instruction {name!r} in computation {c.name!r}")
            self.signatures[c.id] = _Computation(c, instructions, self).signature()
        for name, n in Counter(c.name for c in self.module.computations).items():
            if n > 1:
                raise InvalidHloError(f"there are {n} computations of the name {name!r}")
            if not _is_numbered(name):
                _fail_of_name(f"computation {name!r}")
        return self.signatures


class _Computation:
    """Checks one computation."""

    def __init__(
        self,
        proto: pb.HloComputationProto,
        instructions: Sequence[pb.HloInstructionProto],
        module: _Checker,
    ) -> None:
        self.proto, self.instructions, self.module = proto, instructions, module
        self.defined: dict[int, pb.HloInstructionProto] = {}
        self.shapes: dict[int, Shape] = {}

    def fail(self, instruction: pb.HloInstructionProto, problem: str) -> NoReturn:
        raise InvalidHloError(
            f"instruction {instruction.name!r} in computation {self.proto.name!r}: {problem}"
        )

    def shape(self, id: int) -> Shape:
        result = self.shapes.get(id)
        if result is None:
            try:
                result = self.shapes[id] = Shape.from_proto(self.defined[id].shape)
            except InvalidHloError as e:
                self.fail(self.defined[id], str(e))
        return result

    def signature(self) -> Signature:
        parameters: dict[int, pb.HloInstructionProto] = {}
        defined, signatures = self.defined, self.module.signatures
        for i in self.instructions:
            for k in i.operand_ids[:]:  # See NOTE [slices of fields].
                if k not in defined:
                    self.fail(i, f"operand {k} is not defined before it in this computation")
            opcode = i.opcode
            for c in (called := i.called_computation_ids[:]):
                if c not in signatures:
                    self.fail_of_call(i, c)
            if called and opcode not in opcodes.CALLING:
                self.fail(i, f"it calls computations, which {opcode!r} never does")
            defined[i.id] = i
            if opcode == "parameter":
                if i.parameter_number in parameters:
                    other = parameters[i.parameter_number].name
                    self.fail(i, f"{other!r} is parameter {i.parameter_number} too")
                parameters[i.parameter_number] = i
            elif opcode in _ARITY:
                self.check_shapes(i, opcode)
        for number, i in parameters.items():
            if not 0 <= number < len(parameters):
                self.fail(i, f"it is parameter {number} of only {len(parameters)}")
        if self.proto.root_id not in defined:
            raise InvalidHloError(
                f"computation {self.proto.name!r}: the root {self.proto.root_id} is missing"
            )
        shapes = [self.shape(parameters[k].id) for k in range(len(parameters))]
        return shapes, self.shape(self.proto.root_id)

    def check_shapes(self, i: pb.HloInstructionProto, opcode: str) -> None:
        n_operands, n_called = _ARITY[opcode]
        operands, called = i.operand_ids, i.called_computation_ids
        if n_operands is not None and len(operands) != n_operands:
            self.fail(i, f"it has {len(operands)} operands, not {n_operands}")
        if n_called is not None and len(called) != n_called:
            self.fail(i, f"it calls {len(called)} computations, not {n_called}")
        if opcode == "conditional" and not operands:
            self.fail(i, "it has no branch index")
        found = mismatch(
            opcode,
            [self.shape(k) for k in operands],
            self.shape(i.id),
            [self.module.signatures[c] for c in called],
            i.tuple_index,
        )
        if found:
            self.fail(i, found)

    def fail_of_call(self, i: pb.HloInstructionProto, callee: int) -> NoReturn:
        """Computations come after those that they call, so there is no recursion."""
        by_id = {c.id: c for c in self.module.module.computations}
        if callee not in by_id:
            self.fail(i, f"it calls computation {callee}, which is missing")
        name = by_id[callee].name
        if _reaches(by_id, callee, self.proto.id):
            self.fail(i, f"it calls {name!r}, which is recursion")
        self.fail(i, f"it calls {name!r}, which is defined after it")


def _is_numbered(name: str) -> bool:
    base, dot, number = name.rpartition(".")
    return bool(base and dot) and number.isascii() and number.isdigit()


def _fail_of_name(where: str) -> NoReturn:
    # XLA cuts the number off a name that it wants to make unique, and aborts the process if there
    # is none (xla/hlo/builder/xla_builder.cc: "Check failed: pos != npos").
    raise InvalidHloError(f"{where}: its name does not end in a number, as in 'add.7'")


def _fail_of_twins(module: pb.HloModuleProto) -> NoReturn:
    """Two instructions or computations have the same id, or the same name."""
    ids: dict[int, str] = {}
    names: set[str] = set()
    for c in module.computations:
        where = f"computation {c.name!r}"
        if c.id in ids:
            raise InvalidHloError(f"{where}: its id {c.id} is that of {ids[c.id]} too")
        ids[c.id] = where
        for i in c.instructions:
            if i.id in ids:
                raise InvalidHloError(
                    f"instruction {i.name!r} in {where}: its id {i.id} is that of {ids[i.id]} too"
                )
            if i.name in names:
                raise InvalidHloError(
                    f"instruction {i.name!r} in {where}: there is another instruction of this name"
                )
            ids[i.id] = i.name
            names.add(i.name)
    raise AssertionError("no two are alike")


def _reaches(by_id: Mapping[int, pb.HloComputationProto], start: int, goal: int) -> bool:
    todo, seen = [start], {start}
    while todo:
        here = todo.pop()
        if here == goal:
            return True
        for i in by_id[here].instructions:
            new = [c for c in i.called_computation_ids if c in by_id and c not in seen]
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
