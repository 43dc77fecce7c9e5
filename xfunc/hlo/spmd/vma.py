"""Varying types: along which axes of a mesh a value of a manual region counts as varying.

Whether devices hold equal values is one question (`varying`); the type of the values is another,
which decides what a gradient means. All devices share a value whose type names no axis, so its
gradient is the sum of their contributions. Types follow JAX's rules.

They are only known when a whole region has been traced. Until then *marks* represent the operations
that depend on them: custom calls that no compiler sees, because the border of a region resolves
them for its axes.

=========  ======================  =================================================================
mark       operands                stands for
=========  ======================  =================================================================
``type``   a value                 nothing: a *witness*, a scalar of the type of that value
``cast``   a value[, a witness]    the value, which varies along the mark's axes, or as the witness
``total``  a value, a witness      its sum over the axes along which the witness does not vary
``share``  a value, two witnesses  the value, divided by the number of devices along the axes along
                                   which neither witness varies
=========  ======================  =================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.builder import Builder
from xfunc.hlo.computation import ComputationBuilder, Function, Value
from xfunc.hlo.edit import add_copies, constant, copied, instruction, renamed, with_id
from xfunc.hlo.module import Computation, Instruction, Module
from xfunc.hlo.shape import Shape
from xfunc.hlo.spmd.collectives import AXES
from xfunc.hlo.spmd.marks import TARGET, Cast, Mark, Operation, Total, Type, mark_of
from xfunc.hlo.spmd.varying import Axes, Choice, Varying, Walk, all_axes

_AXES, _WEAK, _AT = "xfunc_vma_axes", "xfunc_vma_weak", "xfunc_vma_at"
_NOWHERE: Choice = ("", frozenset())


class VaryingTypeError(Exception):
    """A cotangent that varies where its value does not.

    Attributes:
        axes: along which.
        at: the text of the mark about it.
    """

    def __init__(self, axes: Axes, at: str):
        super().__init__(axes, at)
        self.axes, self.at = axes, at


def mark(
    body: ComputationBuilder,
    which: Mark,
    operands: Sequence[Value],
    axes: Sequence[str],
    *,
    weak: bool = False,
    at: str = "",
) -> Value:
    """Add a mark.

    Args:
        body: the computation to add to.
        which: see `marks`.
        operands: see above.
        axes: the axes of the mark.
        weak: for a cast: values known to be equal still count as equal.
        at: for a share: raise `VaryingTypeError` with this text if the last operand varies where
            the other witness does not.
    """
    told = {_AXES: ",".join(axes), _WEAK: "true" if weak else "", _AT: at}
    attributes = {k: v for k, v in told.items() if v}
    shape = which.shape(operands[0].shape)
    return body.custom_call(TARGET + which.name, operands, shape, attributes=attributes)


def types(module: Module, parameters: Sequence[Axes], every: Axes) -> tuple[Axes, ...]:
    """The types of the outputs of a module, which returns a tuple.

    Args:
        module: may have marks.
        parameters: the type of each parameter.
        every: the axes of interest.
    """
    found = _Types(every).run(module.entry, tuple(parameters), _NOWHERE)
    n = len(module.entry.root.shape.elements)
    whole = found if isinstance(found, tuple) else (found,) * n
    return tuple(all_axes(x) & every for x in whole)


def settled(
    module: Module,
    parameters: Sequence[Axes],
    sizes: Mapping[str, int],
    total: Total,
) -> Module:
    """The module with the marks of some axes replaced by the operations they represent.

    Args:
        module: not changed.
        parameters: the type of each parameter.
        sizes: the number of devices along each of the axes.
        total: writes the sum of a value over axes.

    Raises:
        VaryingTypeError: see `mark`.
    """
    every = frozenset(n for n, size in sizes.items() if size > 1)
    return _Settling(module, _Types(every), sizes, total).run(tuple(parameters))


def _axes(i: pb.HloInstructionProto) -> Axes:
    return frozenset(i.frontend_attributes.map[_AXES].split(","))


class _Types(Walk):
    """Finds types, for which the paths of devices through the program do not matter."""

    def __init__(self, every: Axes):
        super().__init__(every, partly=False)
        self.every = every

    def run(self, computation: Computation, args: tuple[Varying, ...], around: Choice) -> Varying:
        return super().run(computation, args, _NOWHERE)

    def loop(self, i: Instruction, carry: Varying) -> Varying:
        """The types that a loop carries in the end."""
        return self._loop(i, carry, _NOWHERE)

    def _result(
        self, i: Instruction, operands: list[Varying], args: tuple[Varying, ...], around: Choice
    ) -> Varying:
        found = mark_of(i.proto)
        if found is None:
            return super()._result(i, operands, args, around)
        own, *witnesses = (all_axes(x) for x in operands)
        return found.type_of(own, witnesses, _axes(i.proto) & self.every)


class _Settling:
    """Copies a module; a computation with marks, once for each way in which its inputs vary."""

    def __init__(self, module: Module, walk: _Types, sizes: Mapping[str, int], total: Total):
        self._module, self._walk, self._sizes, self._total = module, walk, sizes, total
        self._b = Builder(module.name)
        self._ids: dict[int, int] = {}
        self._plain: dict[int, Function] = {}
        self._special: dict[tuple[int, tuple[Varying, ...]], Function] = {}
        self._marked = set[int]()
        for c in module.computations:  # callees first
            calls = (k for i in c.instructions for k in i.proto.called_computation_ids)
            own = any(mark_of(i.proto) for i in c.instructions)
            if own or any(k in self._marked for k in calls):
                self._marked.add(c.id)

    def run(self, parameters: tuple[Varying, ...]) -> Module:
        return self._b.build(self._function(self._module.entry, parameters))

    def _function(self, c: Computation, args: tuple[Varying, ...]) -> Function:
        if c.id not in self._marked:
            if c.id not in self._plain:
                for k in {k for i in c.instructions for k in i.proto.called_computation_ids}:
                    self._function(self._module.computation(k), ())
                copy = copied(c.proto, self._ids, self._b.new_id)
                self._plain[c.id] = self._b.finish(copy)
            return self._plain[c.id]
        key = (c.id, args)
        if key not in self._special:
            self._special[key] = self._b.finish(self._copied(c, args))
        return self._special[key]

    def _copied(self, c: Computation, args: tuple[Varying, ...]) -> pb.HloComputationProto:
        self._walk.run(c, args, _NOWHERE)
        found = self._walk.values[c.id, args, _NOWHERE]
        proto = pb.HloComputationProto()
        proto.CopyFrom(c.proto)
        del proto.instructions[:]
        made: list[pb.HloInstructionProto] = []
        known: dict[int, int] = {}
        for i in c.instructions:
            new = with_id(i.proto, self._b.new_id())
            new.operand_ids[:] = [known[o.id] for o in i.operands]
            new.control_predecessor_ids[:] = [known[k] for k in i.proto.control_predecessor_ids]
            operands = [found[o.id] for o in i.operands]
            if what := mark_of(new):
                known[i.id] = self._settle(made, new, what, [all_axes(x) for x in operands])
                continue
            callees = self._callees(i, operands)
            if callees:
                new.called_computation_ids[:] = [f.id for f in callees]
            made.append(new)
            known[i.id] = new.id
        proto.id = self._b.new_id()
        proto.name = renamed(proto.name, proto.id)
        proto.root_id = known[c.proto.root_id]
        add_copies(proto.instructions, made)
        return proto

    def _callees(self, i: Instruction, operands: list[Varying]) -> list[Function]:
        callees = list(i.called_computations)
        args: list[tuple[Varying, ...]] = [()] * len(callees)
        match i.opcode:
            case "call":
                args = [tuple(operands)]
            case "while":
                args = [(self._walk.loop(i, operands[0]),)] * 2
            case "conditional":
                args = [(x,) for x in operands[1:]]
            case _:
                pass
        return [self._function(*x) for x in zip(callees, args, strict=True)]

    def _settle(
        self,
        made: list[pb.HloInstructionProto],
        i: pb.HloInstructionProto,
        what: Mark,
        operands: list[Axes],
    ) -> int:
        """Add the operation that a mark represents; returns the id of its result."""
        axes = _axes(i)
        own, *witnesses = operands
        mine = axes & self._walk.every
        if at := i.frontend_attributes.map.get(_AT):
            of, given = witnesses
            if more := (given - of) & mine:
                raise VaryingTypeError(more, at)
        missing = sorted(mine.difference(*witnesses))
        if missing and isinstance(what, Operation):
            i.operand_ids[0] = self._written(made, i, what, missing)
        strong = isinstance(what, Cast) and _WEAK not in i.frontend_attributes.map
        if strong and mine:  # Equal or not, the values now count as different.
            same = instruction("reshape", self._b.new_id(), i.shape, i.operand_ids[:1])
            same.frontend_attributes.map[AXES] = ",".join(sorted(own | mine))
            made.append(same)
            i.operand_ids[0] = same.id
        pending = sorted(axes - self._sizes.keys())
        if pending:  # for a region around this one
            i.frontend_attributes.map[_AXES] = ",".join(pending)
            made.append(i)
            return i.id
        if not isinstance(what, Type):
            return i.operand_ids[0]
        nothing = constant(False, self._b.new_id(), torch.bool)
        _lies_like(nothing, i)
        made.append(nothing)
        return nothing.id

    def _written(
        self,
        made: list[pb.HloInstructionProto],
        i: pb.HloInstructionProto,
        what: Operation,
        axes: Sequence[str],
    ) -> int:
        body = self._b.computation(what.name)
        x = body.parameter(Shape.from_proto(i.shape))
        result = what.write(body, x, axes, self._sizes, self._total)
        for new in body.proto.instructions:
            if new.opcode == "constant":
                _lies_like(new, i)
        call = instruction("call", self._b.new_id(), i.shape, i.operand_ids[:1], of=i)
        call.called_computation_ids.append(body.build(result).id)
        made.append(call)
        return call.id


def _lies_like(scalar: pb.HloInstructionProto, i: pb.HloInstructionProto) -> None:
    """Make the partitioner treat a scalar as part of the region that a mark is in."""
    if i.HasField("sharding"):
        scalar.sharding.CopyFrom(i.sharding)
        n = len(i.shape.dimensions)
        scalar.sharding.tile_assignment_dimensions[:] = i.sharding.tile_assignment_dimensions[n:]
