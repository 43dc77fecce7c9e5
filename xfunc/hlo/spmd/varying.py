"""Along which axes of a mesh the values of a manual region differ from device to device.

Devices that run one program on different data get different values; a collective gives the same one
to all of its group. The analysis may report too much, but never too little. It answers three
questions: whether an output is the same on all devices; whether all devices of a group take the
same path to a collective (if not, those that do would wait for the others forever); and which sums
are of equal values, and need no communication.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TypeAlias

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import opcodes
from xfunc.hlo.module import Computation, Instruction, Module
from xfunc.hlo.spmd.annotations import is_region
from xfunc.hlo.spmd.collectives import AXES

Axes = frozenset[str]
Varying: TypeAlias = "Axes | tuple[Varying, ...]"
"""The axes of an array; for a tuple, those of each element, or one set for all of them."""

_SAME: Axes = frozenset()


class DivergenceError(Exception):
    """A collective that some devices of a group may reach and others not.

    Attributes:
        opcode: of the collective; empty for those that XLA might insert there.
        axes: along which its devices communicate.
        choice: the opcode of the branch or loop that it is in.
        varies: the axes along which the devices choose differently there.
    """

    def __init__(self, opcode: str, axes: Axes, choice: str, varies: Axes):
        super().__init__(opcode, axes, choice, varies)
        self.opcode, self.axes, self.choice, self.varies = opcode, axes, choice, varies


@dataclasses.dataclass(frozen=True)
class Findings:
    """The results of analysing a module.

    Attributes:
        outputs: for each, the axes along which it differs.
        equal: ids of collectives whose groups have equal values to combine, wherever they run.
            Collectives of inner regions are excluded, because their axes are not among this
            region's own.
    """

    outputs: tuple[Axes, ...]
    equal: frozenset[int]


def varying(
    module: Module, parameters: Sequence[Axes], every: Collection[str], partly: bool = False
) -> Findings:
    """Find out how the values of a module differ.

    Args:
        module: returns a tuple.
        parameters: for each parameter, the axes along which it differs.
        every: all axes of the region.
        partly: whether the region is manual over only some axes: then XLA may insert collectives
            anywhere.

    Raises:
        DivergenceError: devices that wait for each other may take different paths.
    """
    walk = Walk(frozenset(every), partly)
    found = walk.run(module.entry, tuple(parameters), ("", _SAME))
    outputs = range(len(module.entry.root.shape.elements))
    equal = frozenset(key for key, differs in walk.differ.items() if not differs)
    return Findings(tuple(all_axes(_element(found, k)) for k in outputs), equal)


Choice = tuple[str, Axes]  # the branch or loop around, and the axes along which it is chosen
Run: TypeAlias = tuple[int, tuple[Varying, ...], Choice]  # of a computation, on arguments


class Walk:
    """Analyses each computation once for each way in which its arguments differ.

    Attributes:
        differ: by collective, whether its operands differ in any run.
        values: by examined instruction, how its result differs.
    """

    def __init__(self, every: Axes, partly: bool):
        self._every, self._partly = every, partly
        self.differ: dict[int, bool] = {}
        self.values: dict[Run, dict[int, Varying]] = {}
        self._regions = 0  # around the current computation
        self._known: dict[Run, Varying] = {}

    def run(self, computation: Computation, args: tuple[Varying, ...], around: Choice) -> Varying:
        """The result of a computation."""
        key = (computation.id, args, around)
        if key not in self._known:
            values: dict[int, Varying] = {}
            for i in computation.instructions:
                operands = [values[o.id] for o in i.operands]
                values[i.id] = self._result(i, operands, args, around)
            self.values[key] = values
            self._known[key] = values[computation.root.id]
        return self._known[key]

    def _result(
        self, i: Instruction, operands: list[Varying], args: tuple[Varying, ...], around: Choice
    ) -> Varying:
        match i.opcode:
            case "parameter":
                return args[i.parameter_number]
            case "tuple":
                return tuple(operands)
            case "get-tuple-element":
                return _element(operands[0], i.proto.tuple_index)
            case "opt-barrier":
                return operands[0]
            case "call":
                (callee,) = i.called_computations
                self._regions += is_region(callee.proto)
                found = self.run(callee, tuple(operands), around)
                self._regions -= is_region(callee.proto)
                return found
            case "while":
                return self._loop(i, operands[0], around)
            case "conditional":
                return self._branches(i, operands, around)
            case "partition-id":
                return self._every
            case _:
                pass
        found = all_axes(tuple(operands))
        said = i.proto.frontend_attributes.map.get(AXES)
        if i.opcode in opcodes.COLLECTIVES:
            axes = frozenset((said or "").split(","))
            # A permutation has no groups: all devices must take part.
            if around[1] & (self._every if i.opcode == "collective-permute" else axes):
                raise DivergenceError(i.opcode, axes, *around)
            self.differ[i.id] = self.differ.get(i.id, self._regions > 0) or bool(found & axes)
            is_shared = i.opcode in ("all-reduce", "all-gather")
            return found - axes if is_shared else found | axes
        return found if said is None else frozenset(said.split(","))

    def _loop(self, i: Instruction, carry: Varying, around: Choice) -> Varying:
        body, condition = i.called_computations
        rounds = _SAME  # how the number of rounds differs
        while True:
            inside = ("while", around[1] | rounds)
            again = all_axes(self.run(condition, (carry,), inside))
            after = _joined(carry, self.run(body, (carry,), inside), i.proto.shape)
            after = _plus(after, again, i.proto.shape)
            self._check(("while", again))
            if after == carry and again <= rounds:
                return carry
            carry, rounds = after, rounds | again

    def _branches(self, i: Instruction, operands: list[Varying], around: Choice) -> Varying:
        chosen = all_axes(operands[0])
        inside = ("conditional", around[1] | chosen) if chosen else around
        self._check(inside)
        found: Varying = _SAME
        for branch, arg in zip(i.called_computations, operands[1:], strict=True):
            found = _joined(found, self.run(branch, (arg,), inside), i.proto.shape)
        return _plus(found, chosen, i.proto.shape)

    def _check(self, choice: Choice) -> None:
        if self._partly and choice[1]:
            raise DivergenceError("", self._every, *choice)


def _element(of: Varying, k: int) -> Varying:
    return of[k] if isinstance(of, tuple) else of


def all_axes(x: Varying) -> Axes:
    """The axes along which anything in a value differs."""
    if not isinstance(x, tuple):
        return x
    return _SAME.union(*map(all_axes, x))


def _joined(a: Varying, b: Varying, shape: pb.ShapeProto) -> Varying:
    if shape.element_type != pb.TUPLE:
        return all_axes(a) | all_axes(b)
    elements = enumerate(shape.tuple_shapes)
    return tuple(_joined(_element(a, k), _element(b, k), s) for k, s in elements)


def _plus(x: Varying, axes: Axes, shape: pb.ShapeProto) -> Varying:
    return _joined(x, axes, shape) if axes else x
