"""`simplify`: an entry in which each value occurs once, in one form.

XLA simplifies far more, and later. But when a joint program is cut in two, a value that is computed
twice, or in two equivalent forms, would be kept twice or recomputed. So this pass removes no-ops
and pairs that undo each other, folds constant scalars, merges equal operations, and removes dead
code.

Results stay the same, bit for bit. If a removed operation on floats could change its operand after
all (``x * 1`` makes a signalling NaN a quiet one), XLA would have removed it as well.

NOTE [what is left alone]: instructions that carry more than a computation, such as a sharding, a
name or an execution order; calls of custom functions; instructions that have effects, communicate
or draw random numbers; and barriers, after which a value counts as a different one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import opcodes
from xfunc.hlo.edit import fill
from xfunc.hlo.module import Module
from xfunc.hlo.passes import scalars
from xfunc.hlo.passes.common import dead_code_elimination
from xfunc.hlo.passes.equivalence import Same


def simplify(module: Module, *, bodies: bool = False) -> Module:
    """The module with a simpler entry; remaining instructions keep their ids.

    Args:
        module: not changed.
        bodies: whether to simplify the bodies of loops and branches as well.
    """
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    same = Same(module)
    inside: set[int] = set()
    if bodies:
        inside = {k for c in module.proto.computations for k in _bodies(c)}
    for c in proto.computations:
        if c.id == proto.entry_computation_id or c.id in inside:
            simpler = _Simpler(same, {k for i in c.instructions for k in i.control_predecessor_ids})
            for i in c.instructions:
                simpler.add(i)
            fill(c, simpler.instructions)
            c.root_id = simpler.stands_for.get(c.root_id, c.root_id)
    return dead_code_elimination(Module(proto))


def _bodies(c: pb.HloComputationProto) -> Iterator[int]:
    for i in c.instructions:
        if i.opcode in ("while", "conditional"):
            yield from i.called_computation_ids


class _Value:
    """The properties of an instruction that the rules use, read once."""

    __slots__ = ("dims", "fill", "opcode", "operands", "plain", "proto", "timeless", "type")

    def __init__(
        self, proto: pb.HloInstructionProto, operands: list[int], awaited: bool = False
    ) -> None:
        shape = proto.shape
        self.proto = proto
        self.opcode = proto.opcode
        self.operands = operands
        self.type = shape.element_type
        self.dims = tuple(shape.dimensions)
        # See NOTE [what is left alone].
        in_order = awaited or proto.control_predecessor_ids
        self.timeless = not (in_order or proto.HasField("sharding"))
        self.plain = self.timeless and not proto.frontend_attributes.map
        self.fill: scalars.Number | None = None  # the value of all its elements, if known


class _Simpler:
    """A simplified computation under construction."""

    def __init__(self, same: Same, awaited: set[int]) -> None:
        self.instructions: list[pb.HloInstructionProto] = []
        self.stands_for: dict[int, int] = {}
        self._values: dict[int, _Value] = {}
        self._same = same
        self._awaited = awaited
        self._first: dict[Hashable, int] = {}

    def add(self, i: pb.HloInstructionProto) -> None:
        key, before = i.id, list(i.operand_ids)
        operands = [self.stands_for.get(k, k) for k in before]
        value = _Value(i, operands, key in self._awaited)
        other = self._plain(value) if value.plain else None
        if other is None:
            if value.operands != before and value.proto is i:
                value.proto = _copy(i)
                value.proto.operand_ids[:] = value.operands
            if value.timeless and value.opcode in opcodes.PURE:
                other = self._first.setdefault(self._same.key(value.proto, value.operands), key)
        if other is not None and other != key:
            self.stands_for[key] = other
            return
        self._values[key] = value
        self.instructions.append(value.proto)

    def _plain(self, value: _Value) -> int | None:
        """Apply a rule; returns the id of a value that it equals, if there is one."""
        rule = _RULES.get(value.opcode)
        if rule is not None:
            other = rule(value, self._values)
            if other is not None:
                return other
        value.fill = _fill(value, self._values)
        if value.fill is not None and not value.dims and value.opcode != "constant":
            value.proto = _copy(value.proto)
            scalars.write(value.fill, value.proto)
            value.opcode, value.operands = "constant", []
        return None


def _copy(i: pb.HloInstructionProto) -> pb.HloInstructionProto:
    copy = pb.HloInstructionProto()
    copy.CopyFrom(i)
    return copy


def _fill(value: _Value, values: _Values) -> scalars.Number | None:
    if value.opcode == "constant":
        return scalars.read(value.proto)
    fills = [values[k].fill for k in value.operands]
    if not fills or any(f is None for f in fills):
        return None
    if value.opcode in ("broadcast", "reshape", "transpose"):
        return fills[0]
    if value.opcode == "compare":
        return scalars.compared(value.proto.comparison_direction, *fills)
    return scalars.computed(value.opcode, fills, value.type)


# -- rules ----------------------------------------------------------------------------------------

_Values = dict[int, _Value]
Rule = Callable[[_Value, _Values], int | None]
"""The id of an earlier value that a value is equal to; or None, having changed the value or not."""


def _same_shape(v: _Value, values: _Values) -> int | None:
    return v.operands[0] if values[v.operands[0]].dims == v.dims else None


def _copied(v: _Value, values: _Values) -> int | None:
    del values
    return v.operands[0]


def _concatenated(v: _Value, values: _Values) -> int | None:
    del values
    return v.operands[0] if len(v.operands) == 1 else None


def _converted(v: _Value, values: _Values) -> int | None:
    of = values[v.operands[0]]
    if of.type == v.type:
        return v.operands[0]
    if of.opcode == "convert" and of.plain:
        first = values[of.operands[0]]
        if first.type == v.type and scalars.holds_all(of.type, first.type):
            return of.operands[0]
    return None


def _reshaped(v: _Value, values: _Values) -> int | None:
    of = values[v.operands[0]]
    if of.opcode == "reshape" and of.plain:
        _take(v, of.operands[0])
    return _same_shape(v, values)


def _transposed(v: _Value, values: _Values) -> int | None:
    of, order = values[v.operands[0]], list(v.proto.dimensions)
    if of.opcode == "transpose" and of.plain:
        inner = of.proto.dimensions
        order = [inner[d] for d in order]
        _take(v, of.operands[0], order)
    return v.operands[0] if order == [*range(len(order))] else None


def _broadcast(v: _Value, values: _Values) -> int | None:
    of, places = values[v.operands[0]], list(v.proto.dimensions)
    if of.opcode == "broadcast" and of.plain:
        places = [places[d] for d in of.proto.dimensions]
        _take(v, of.operands[0], places)
    return v.operands[0] if places == [*range(len(v.dims))] else None


def _updated(v: _Value, values: _Values) -> int | None:
    return v.operands[1] if values[v.operands[1]].dims == v.dims else None


def _selected(v: _Value, values: _Values) -> int | None:
    which, yes, no = v.operands
    fill = values[which].fill
    if yes == no or fill is None:
        return yes if yes == no else None
    return yes if fill else no


def _element(v: _Value, values: _Values) -> int | None:
    of = values[v.operands[0]]
    return of.operands[v.proto.tuple_index] if of.opcode == "tuple" and of.plain else None


def _multiplied(v: _Value, values: _Values) -> int | None:
    a, b = v.operands
    if values[b].fill == 1:
        return a
    return b if values[a].fill == 1 else None


def _divided(v: _Value, values: _Values) -> int | None:
    a, b = v.operands
    return a if values[b].fill == 1 else None


def _added(v: _Value, values: _Values) -> int | None:
    a, b = v.operands
    if v.type in scalars.FLOATS:
        return None  # -0 + 0 is 0.
    if values[b].fill == 0:
        return a
    return b if values[a].fill == 0 else None


def _subtracted(v: _Value, values: _Values) -> int | None:
    a, b = v.operands
    fill = values[b].fill
    return a if fill == 0 and not np.signbit(float(fill)) else None  # -0 - -0 is 0.


def _compared(v: _Value, values: _Values) -> int | None:
    a, b = v.operands
    says_nothing = {"NE": False, "EQ": True}.get(v.proto.comparison_direction)
    if says_nothing is None or values[a].type != pb.PRED:
        return None
    if values[b].fill == says_nothing:
        return a
    return b if values[a].fill == says_nothing else None


def _take(v: _Value, operand: int, dimensions: Sequence[int] | None = None) -> None:
    """Let a value be made of another operand."""
    v.operands = [operand]
    v.proto = _copy(v.proto)
    v.proto.operand_ids[:] = [operand]
    if dimensions is not None:
        v.proto.dimensions[:] = dimensions


_RULES: dict[str, Rule] = {
    "add": _added,
    "broadcast": _broadcast,
    "compare": _compared,
    "concatenate": _concatenated,
    "convert": _converted,
    "copy": _copied,
    "divide": _divided,
    "dynamic-slice": _same_shape,
    "dynamic-update-slice": _updated,
    "get-tuple-element": _element,
    "multiply": _multiplied,
    "reshape": _reshaped,
    "select": _selected,
    "slice": _same_shape,
    "subtract": _subtracted,
    "transpose": _transposed,
}
