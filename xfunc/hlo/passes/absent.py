"""Absent tangents and cotangents: zeros that stay zero whatever they are multiplied by.

Derivative formulas multiply: the tangent of ``a * b`` is ``da * b + a * db``. If `a` is a constant
there is no `da`, and its product with `b` must not be computed: ``0 * inf`` would give NaN. torch
has special tensors for this, whose product with anything is again such a tensor, but not on every
device, nor for every product. Here these zeros are marked when they are made, and followed through
the module once a traced function has been lowered.

In reverse mode, only a run of the backward pass shows which results have no cotangent: `without`
reduces a module to what is left of it when some of its parameters are absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.composite import operation_of
from xfunc.hlo.computation import ComputationBuilder, Value
from xfunc.hlo.edit import (
    add_copies,
    bypass,
    constant,
    copied,
    entry_of,
    fill,
    fresh_ids,
    instruction,
)
from xfunc.hlo.module import Module
from xfunc.hlo.passes import scalars
from xfunc.hlo.passes.common import dead_code_elimination, extract, reachable
from xfunc.hlo.passes.inline import inline_calls
from xfunc.hlo.shape import Shape
from xfunc.hlo.spmd.annotations import is_pair

Known: TypeAlias = "bool | tuple[Known, ...]"
"""Whether a value is absent; for a tuple, whether each element is."""


def absent_tangent(
    body: ComputationBuilder, anchor: Value, *, dims: tuple[int, ...], dtype: torch.dtype
) -> Value:
    """Zeros, marked as absent by the name of their computation."""
    return body.zeros(Shape(dtype, dims))


def _is_mark(c: pb.HloComputationProto) -> bool:
    return c.name.startswith(absent_tangent.__name__)


def drop_absent(proto: pb.HloModuleProto) -> Module:
    """A module in which marked zeros spread through products and are left out of sums.

    Args:
        proto: of the module; it is changed.
    """
    if not any(map(_is_mark, proto.computations)):
        return Module(proto)
    spread = _Spread(proto)
    for c in proto.computations:
        spread.over(c, {})
    _add(proto, spread.made)
    return dead_code_elimination(Module(proto))


def without(
    module: Module, absent: Collection[int], kept: Collection[int] | None = None
) -> tuple[Module | None, tuple[int, ...], tuple[int, ...]]:
    """What is left of a module when some of its parameters are absent.

    Args:
        module: not changed.
        absent: the numbers of the absent parameters.
        kept: the results to keep; by default, those that are not absent then.

    Returns:
        The module, None if it has no results; the parameters that are left, and the results.
    """
    flat = inline_calls(module)
    proto = pb.HloModuleProto()
    proto.CopyFrom(flat.proto)
    entry, spread = entry_of(proto), _Spread(proto)
    numbers = {i.id: i.parameter_number for i in entry.instructions if i.opcode == "parameter"}
    known = spread.over(entry, dict.fromkeys(absent, True), keep_parameters=False)
    _add(proto, spread.made)
    left = Module(proto)
    operands = left.entry.root.operands
    gone = known if isinstance(known, tuple) else (known,) * len(operands)
    results = tuple(k for k, g in enumerate(gone) if not g) if kept is None else tuple(kept)
    if not results:
        return None, (), ()
    roots = [operands[k] for k in results]
    needed = reachable(roots)
    parameters = [k for k, n in numbers.items() if k in needed and n not in absent]
    parameters.sort(key=numbers.__getitem__)
    found = extract(left, [r.id for r in roots], parameters, name=module.name)
    return found, tuple(numbers[k] for k in parameters), results


def _add(proto: pb.HloModuleProto, made: Sequence[pb.HloComputationProto]) -> None:
    """Add computations to a module, before its entry."""
    if not made:
        return
    add_copies(proto.computations, made)
    proto.computations.sort(key=lambda c: c.id == proto.entry_computation_id)


# Zero if the first operand is.
_LINEAR = frozenset(
    "broadcast convert copy divide dynamic-slice fft gather imag negate real reduce-precision "
    "reshape reverse slice transpose".split()
)
_PRODUCTS = frozenset(("multiply", "dot", "convolution"))  # zero if any operand is
_SUMS = frozenset(("add", "subtract", "complex", "concatenate"))  # zero if all operands are
# Zero if these operands are.
_PARTS = {
    "select": (1, 2),
    "dynamic-update-slice": (0, 1),
    "scatter": (0, 2),
    "pad": (0, 1),
    "select-and-scatter": (1, 2),
    "triangular-solve": (1,),
}


class _Spread:
    """Rewrites computations, and copies of those that they call with absent operands.

    Attributes:
        made: the copies, callees before callers.
    """

    def __init__(self, proto: pb.HloModuleProto) -> None:
        self.computations = {c.id: c for c in proto.computations}
        self.ids: Iterator[int] = fresh_ids(proto)
        self.made: list[pb.HloComputationProto] = []

    def over(
        self, c: pb.HloComputationProto, given: Mapping[int, Known], keep_parameters: bool = True
    ) -> Known:
        """Rewrite a computation in place; returns what is known of its result.

        Args:
            c: the computation.
            given: what is known of parameters, by number.
            keep_parameters: whether absent parameters, which hold zeros, remain parameters.
        """
        found = _Absent(c, self, given)
        made: list[pb.HloInstructionProto] = []
        for i in c.instructions:
            if found.known.get(i.id) is True and not i.shape.tuple_shapes:
                if i.opcode == "parameter" and keep_parameters:
                    made.append(i)
                    continue
                zero = constant(0, next(self.ids), Shape.from_proto(i.shape).dtype)
                made.append(zero)
                i = instruction("broadcast", i.id, i.shape, [zero.id], of=i)
            made.append(i)
        if len(made) > len(c.instructions):
            fill(c, made)
        bypass(c, found.stands_for)
        return found.known.get(c.root_id, False)

    def special(self, k: int, given: Mapping[int, Known]) -> tuple[int, Known]:
        """A copy of a computation, specialised to what is known of its parameters."""
        copy = copied(self.computations[k], {}, lambda: next(self.ids))
        known = self.over(copy, given)
        self.computations[copy.id] = copy
        self.made.append(copy)
        return copy.id, known


class _Absent:
    """The absent values in a computation.

    Attributes:
        known: what is absent, by the ids of values.
        stands_for: for sums with an absent part, the part that is left.
    """

    def __init__(
        self, c: pb.HloComputationProto, spread: _Spread, given: Mapping[int, Known]
    ) -> None:
        self.known: dict[int, Known] = {}
        self.stands_for: dict[int, int] = {}
        self._zeros: set[int] = set()  # zeros by value, not absent
        self._spread = spread
        for i in c.instructions:
            if i.HasField("sharding") or i.control_predecessor_ids:
                continue
            is_given = i.opcode == "parameter"
            known = given.get(i.parameter_number, False) if is_given else self._of(i)
            if _any(known):
                self.known[i.id] = known
            elif i.opcode in ("add", "subtract"):
                first, second = i.operand_ids
                if second in self.known:
                    self.stands_for[i.id] = first
                elif first in self.known:
                    if i.opcode == "add":
                        self.stands_for[i.id] = second
                    else:
                        i.opcode = "negate"
                        i.operand_ids[:] = [second]

    def _of(self, i: pb.HloInstructionProto) -> Known:
        known = [self.known.get(k, False) for k in i.operand_ids]
        match i.opcode:
            case "constant":
                if not i.shape.dimensions and scalars.read(i) == 0:
                    self._zeros.add(i.id)
                return False
            case "tuple":
                return tuple(known)
            case "get-tuple-element":
                of = known[0]
                return of[i.tuple_index] if isinstance(of, tuple) else of
            case "opt-barrier":
                return known[0]
            case "call":
                callee = self._spread.computations[i.called_computation_ids[0]]
                if _is_mark(callee):
                    return True
                return tuple(known) if is_pair(callee) else self._call(i, known)
            case "while":
                return self._loop(i, known[0])
            case "conditional":
                return self._choice(i, known[1:])
            case _:
                return self._array(i, known)

    def _call(self, i: pb.HloInstructionProto, known: Sequence[Known]) -> Known:
        callee = i.called_computation_ids[0]
        # What a target puts in the place of a composite computes from all of its operands.
        if not any(map(_any, known)) or operation_of(self._spread.computations[callee]) is not None:
            return False
        special, found = self._spread.special(callee, dict(enumerate(known)))
        i.called_computation_ids[0] = special
        return found

    def _loop(self, i: pb.HloInstructionProto, known: Known) -> Known:
        body, made = i.called_computation_ids[0], len(self._spread.made)
        while _any(known):
            special, after = self._spread.special(body, {0: known})
            if (both := _both(known, after)) == known:
                i.called_computation_ids[0] = special
                return known
            known = both
            del self._spread.made[made:]
        return False

    def _choice(self, i: pb.HloInstructionProto, known: Sequence[Known]) -> Known:
        if not any(map(_any, known)):
            return False
        pairs = zip(i.called_computation_ids, known, strict=True)
        branches = [self._spread.special(k, {0: of}) for k, of in pairs]
        i.called_computation_ids[:] = [k for k, _ in branches]
        found = branches[0][1]
        for _, after in branches[1:]:
            found = _both(found, after)
        return found

    def _array(self, i: pb.HloInstructionProto, known: Sequence[Known]) -> bool:
        if i.opcode in _PRODUCTS:
            return True in known
        if i.opcode in _LINEAR:
            parts = [0]
        elif i.opcode in _SUMS:
            parts = range(len(known))
        elif i.opcode in _PARTS:
            parts = _PARTS[i.opcode]
        elif i.opcode in ("reduce", "reduce-window") and self._adds(i):
            parts = [0]
        else:
            return False
        nothing = [known[k] is True or i.operand_ids[k] in self._zeros for k in parts]
        if not nothing or not all(nothing):
            return False
        if any(known[k] is True for k in parts):
            return True
        self._zeros.add(i.id)
        return False

    def _adds(self, i: pb.HloInstructionProto) -> bool:
        """Whether a reduction is a sum."""
        callee = self._spread.computations[i.called_computation_ids[0]]
        root = next(j for j in callee.instructions if j.id == callee.root_id)
        return root.opcode == "add"


def _any(known: Known) -> bool:
    return any(map(_any, known)) if isinstance(known, tuple) else known


def _both(a: Known, b: Known) -> Known:
    """What is absent in both."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple(map(_both, a, b))
    if isinstance(a, tuple) or isinstance(b, tuple):
        return (a if b else False) if isinstance(a, tuple) else (b if a else False)
    return a and b
