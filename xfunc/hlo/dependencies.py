"""Which parameters each output of a module depends on.

NOTE [dependencies, element by element]
Sets of parameters are bit masks: the union of two is ``|``, which costs next to nothing even with
thousands of parameters. The dependencies of a value are a `Deps`: one mask, or for a tuple whose
elements are known separately, one `Deps` for each. A mask may also stand for a tuple: then every
element has those dependencies.

A computation is analysed once, whatever calls it: its *summary* is the `Deps` of its root in terms
of its *atoms*, the array-shaped leaves of its parameters in order. A call replaces each atom by the
dependencies of the argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from xfunc.hlo import hlo_pb2 as pb

if TYPE_CHECKING:
    from xfunc.hlo.module import Computation, Instruction, Module

Deps: TypeAlias = "int | tuple[Deps, ...]"


def output_dependencies(module: Module) -> tuple[frozenset[int], ...]:
    """See `Module.output_dependencies`."""
    entry = module.entry
    numbers: list[int] = []  # of the parameter that an atom is part of
    for p in entry.parameters:
        numbers += [p.parameter_number] * _count(p.proto.shape)
    summary = _Summaries(module).of(entry)
    outputs: Sequence[Deps] = (summary,)
    if entry.root.proto.shape.element_type == pb.TUPLE:
        n = len(entry.root.proto.shape.tuple_shapes)
        outputs = summary if isinstance(summary, tuple) else (summary,) * n
    return tuple(frozenset(numbers[a] for a in _bits(_mask(o))) for o in outputs)


class _Summaries:
    """The summaries of a module's computations."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.made: dict[int, Deps] = {}

    def of(self, computation: Computation) -> Deps:
        found = self.made.get(computation.id)
        if found is None:
            found = self.made[computation.id] = self.summarise(computation)
        return found

    def summarise(self, computation: Computation) -> Deps:
        values: dict[int, Deps] = {}
        first_atom = 0
        for p in computation.parameters:
            values[p.id], first_atom = _atoms(p.proto.shape, first_atom)
        for i in computation.instructions:
            if i.opcode != "parameter":
                values[i.id] = self.result(i, [values[o.id] for o in i.operands])
        return values[computation.root.id]

    def result(self, i: Instruction, operands: list[Deps]) -> Deps:
        match i.opcode:
            case "tuple":
                return tuple(operands)
            case "get-tuple-element":
                of = operands[0]
                return of[i.proto.tuple_index] if isinstance(of, tuple) else of
            case "opt-barrier":
                return operands[0]
            case "call":
                (callee,) = i.called_computations
                atoms: list[int] = []
                for operand, known in zip(i.operands, operands, strict=True):
                    atoms += _leaves(known, operand.proto.shape)
                return _substitute(self.of(callee), atoms)
            case "while":
                return self.loop(i, _leaves(operands[0], i.proto.shape))
            case _:
                return _mask(tuple(operands))

    def loop(self, i: Instruction, init: list[int]) -> Deps:
        """After any number of rounds; `init` are the dependencies of the leaves of the carry."""
        body, condition = i.called_computations
        # carried[k]: the leaves of the initial carry that leaf k may depend on.
        once = _leaves(self.of(body), i.proto.shape)
        carried = [mask | 1 << k for k, mask in enumerate(once)]
        # Warshall's closure. A leaf that the body passes on unchanged adds nothing.
        for via in range(len(carried)):
            if carried[via] != 1 << via:
                for k in range(len(carried)):
                    if carried[k] >> via & 1:
                        carried[k] |= carried[via]
        rounds = 0  # the dependencies of the number of rounds
        for k in _bits(_mask(self.of(condition))):
            rounds |= carried[k]
        masks = [_substitute_mask(mask | rounds, init) for mask in carried]
        return _shaped(i.proto.shape, iter(masks))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _count(shape: pb.ShapeProto) -> int:
    if shape.element_type == pb.TUPLE:
        return sum(map(_count, shape.tuple_shapes))
    return 1


def _atoms(shape: pb.ShapeProto, first: int) -> tuple[Deps, int]:
    """A value of this shape whose leaves are the atoms from `first` on; the next free atom."""
    n = _count(shape)
    return _shaped(shape, iter([1 << k for k in range(first, first + n)])), first + n


def _shaped(shape: pb.ShapeProto, masks: Iterator[int]) -> Deps:
    if shape.element_type == pb.TUPLE:
        return tuple(_shaped(s, masks) for s in shape.tuple_shapes)
    return next(masks)


def _leaves(deps: Deps, shape: pb.ShapeProto) -> list[int]:
    if shape.element_type != pb.TUPLE:
        return [_mask(deps)]
    if not isinstance(deps, tuple):
        return [deps] * _count(shape)
    found: list[int] = []
    for element, of in zip(deps, shape.tuple_shapes, strict=True):
        found += _leaves(element, of)
    return found


def _mask(deps: Deps) -> int:
    if not isinstance(deps, tuple):
        return deps
    mask = 0
    for element in deps:
        mask |= _mask(element)
    return mask


def _substitute(deps: Deps, atoms: Sequence[int]) -> Deps:
    if isinstance(deps, tuple):
        return tuple(_substitute(element, atoms) for element in deps)
    return _substitute_mask(deps, atoms)


def _substitute_mask(mask: int, atoms: Sequence[int]) -> int:
    found = 0
    for k in _bits(mask):
        found |= atoms[k]
    return found
