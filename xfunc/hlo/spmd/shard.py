"""`per_chip`: an estimate of the shapes in the module that one chip of a mesh runs.

Parameters state their shardings. These are propagated forward, operation by operation, through
calls, loops and branches: elementwise operations keep the shardings of their operands, and a matrix
product keeps those of the dimensions that it does not contract. Constraints state a sharding; ties
give the sharding of one value to the other. Values of unknown sharding count as replicated.

Each dimension of a value is sharded over some *axes* of the mesh, and no value over an axis twice.
HLO does not name axes. Here one is a prime factor of the number of devices, known by its stride:
devices with numbers that differ by multiples of the stride are along it. Constants and values
computed from them have no sharding (None) until something gives them one.

Results of XLA's partitioner differ in detail: it may shard more, and communication between chips
takes additional memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from xfunc.graph import opcodes
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import wire
from xfunc.hlo.module import Computation, Instruction, Module
from xfunc.hlo.shape import Shape
from xfunc.hlo.spmd.annotations import SHARDING, is_pair
from xfunc.hlo.spmd.tiles import DeviceAssignment

Axis: TypeAlias = tuple[int, int]
"""Stride and size."""
Axes: TypeAlias = tuple[Axis, ...]
DimSharding: TypeAlias = "tuple[Axes, ...] | list[DimSharding] | None"
"""Of an array, the axes of each dimension, or None; of a tuple, a list of its elements."""


def per_chip(module: Module) -> Module:
    """The module with the shapes that one chip sees; suitable only for measuring.

    Args:
        module: without calls except those of ties and manual regions; its parameters state their
            shardings.
    """
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    walk = _Walk()
    start = [axes_of(p.proto.sharding, len(p.shape.dims)) for p in module.entry.parameters]
    walk.run(module.entry, start)
    walk.infer_missing(module)
    for c in proto.computations:
        for i in c.instructions:
            _divide(i.shape, walk.found.get(i.id))
    return Module(proto)


def _divide(shape: pb.ShapeProto, division: DimSharding) -> None:
    if isinstance(division, list):
        for element, d in zip(shape.tuple_shapes, division, strict=True):
            _divide(element, d)
    elif division:
        for d, axes in enumerate(division):
            shape.dimensions[d] = -(-shape.dimensions[d] // _size(axes))


def _size(axes: Axes) -> int:
    return math.prod(n for _, n in axes)


# -- the axes of a sharding -----------------------------------------------------------------------


def axes_of(sharding: pb.OpSharding, ndim: int) -> tuple[Axes, ...]:
    """The axes of each dimension, of an array of `ndim` dimensions."""
    whole: tuple[Axes, ...] = ((),) * ndim
    tiles = list(sharding.tile_assignment_dimensions)
    if sharding.type != pb.OpSharding.OTHER or len(tiles) < ndim:
        return whole
    if sharding.iota_reshape_dims:
        order = DeviceAssignment(
            tuple(sharding.iota_reshape_dims), tuple(sharding.iota_transpose_perm)
        )
    else:  # Only the sizes of a list are used: devices are numbered in its order.
        order = DeviceAssignment((math.prod(tiles),), (0,))
    left = [axis for d in order.perm for axis in _primes(order.reshape, d)]
    found: list[Axes] = []
    for n in tiles[:ndim]:
        axes: list[Axis] = []
        while _size(tuple(axes)) < n and left:
            axes.append(left.pop(0))
        if _size(tuple(axes)) != n:
            return whole
        found.append(tuple(axes))
    return tuple(found)


def _primes(sizes: Sequence[int], d: int) -> list[Axis]:
    """The prime axes of dimension d of the numbers of the devices, the slowest first."""
    stride, n = math.prod(sizes[d:]), sizes[d]
    result: list[Axis] = []
    p = 2
    while n > 1:
        while n % p:
            p += 1
        n //= p
        stride //= p
        result.append((stride, p))
    return result


# -- how operations divide their results ----------------------------------------------------------


def merged(parts: Sequence[DimSharding], dims: Sequence[int]) -> DimSharding:
    """One division for values of the same dimensions: earlier ones take precedence."""
    arrays = [p for p in parts if isinstance(p, tuple)]
    if not arrays:
        return None
    result = list(arrays[0])
    for other in arrays[1:]:
        for d, axes in enumerate(other):
            used = {a for k, found in enumerate(result) if k != d for a in found}
            if len(axes) > len(result[d]) and used.isdisjoint(axes):
                result[d] = axes
    return _fitting(result, dims)


def _fitting(axes: Sequence[Axes], dims: Sequence[int]) -> tuple[Axes, ...]:
    """The axes, each once, without those of a dimension that is not a multiple of them."""
    used: set[Axis] = set()
    found: list[Axes] = []
    for n, names in zip(dims, axes, strict=True):
        fits = n % _size(names) == 0 and used.isdisjoint(names)
        found.append(names if fits else ())
        used.update(found[-1])
    return tuple(found)


def _reshaped(old: Sequence[int], new: Sequence[int], axes: Sequence[Axes]) -> list[Axes]:
    """When dimensions are merged or split, the leading one keeps the axes."""
    result: list[Axes] = [() for _ in new]
    if 0 in old:
        return result
    sources = [d for d, n in enumerate(old) if n > 1]
    targets = [d for d, n in enumerate(new) if n > 1]
    while sources:
        left = list(axes[sources[0]])
        a, b, leading = old[sources.pop(0)], 1, True
        while b < a:
            d = targets.pop(0)
            b, n = b * new[d], new[d]
            while leading and left and n % left[0][1] == 0:
                n //= left[0][1]
                result[d] = (*result[d], left.pop(0))
            leading = leading and n == 1
            while a < b:
                a *= old[sources.pop(0)]
    return result


class _Walk:
    """The divisions found so far, by the id of an instruction."""

    def __init__(self) -> None:
        self.found: dict[int, DimSharding] = {}

    def run(self, computation: Computation, arguments: Sequence[DimSharding]) -> DimSharding:
        """The division of a computation's result."""
        for i in computation.instructions:
            if i.opcode == "parameter":
                self.found[i.id] = arguments[i.parameter_number]
            else:
                self.found[i.id] = self._result(i, [self.found[o.id] for o in i.operands])
        return self.found[computation.root.id]

    def _result(self, i: Instruction, of: list[DimSharding]) -> DimSharding:
        match i.opcode:
            case "tuple":
                return of
            case "get-tuple-element":
                return of[0][i.proto.tuple_index] if isinstance(of[0], list) else None
            case "opt-barrier":
                return of[0]
            case "while":
                return self._loop(i, of[0])
            case "call" | "conditional":
                return self._call(i, of)
            case _:
                pass
        if i.shape.is_tuple:
            return [self._array(i, of, e.dims) for e in i.shape.elements]
        return self._array(i, of, i.shape.dims)

    def _array(self, i: Instruction, of: list[DimSharding], dims: tuple[int, ...]) -> DimSharding:
        if i.opcode == "custom-call":
            return _annotated(i, of)
        if all(d is None for d in of):
            return None
        if i.opcode in opcodes.PER_SHARD:
            axes = _kept(i, of, dims)
        else:
            arrays = [d if isinstance(d, tuple) else None for d in of]
            axes = _RULES.get(i.opcode, _whole)(i, arrays)
        return None if axes is None else _fitting(axes, dims)

    def _loop(self, i: Instruction, start: DimSharding) -> DimSharding:
        body, condition = i.called_computations
        state = start
        for _ in range(3):  # A division moves through the state by one position at each step.
            before, state = state, _refined(state, self.run(body, [state]), i.shape)
            if state == before:
                break
        self.run(condition, [state])
        return state

    def _call(self, i: Instruction, of: list[DimSharding]) -> DimSharding:
        called = i.called_computations
        if i.opcode == "conditional":
            results = [self.run(c, [d]) for c, d in zip(called, of[1:], strict=True)]
            return results[0]
        if is_pair(called[0].proto):
            both = merged(of, i.shape.elements[0].dims)
            self.run(called[0], [both, both])
            return [both, both]
        return self.run(called[0], of)

    # -- values without a division get that of their users -----------------------------------------

    def infer_missing(self, module: Module) -> None:
        """Shard values computed from constants like their users."""
        for c in reversed(module.computations):  # callers first
            for i in reversed(c.instructions):
                of = self.found.get(i.id)
                if i.opcode == "tuple" and isinstance(of, list):
                    wanted = of
                elif i.opcode in opcodes.PER_SHARD and isinstance(of, tuple):
                    wanted = [of if o.shape.dims == i.shape.dims else None for o in i.operands]
                elif i.opcode == "while":
                    wanted = [of]
                    root = i.called_computations[0].root
                    self.found[root.id] = _first(self.found[root.id], of)
                elif i.opcode == "get-tuple-element" and of is not None:
                    (source,) = i.operands
                    known = self.found[source.id]
                    if isinstance(known, list) and known[i.proto.tuple_index] is None:
                        known[i.proto.tuple_index] = of
                    continue
                else:
                    continue
                for o, w in zip(i.operands, wanted, strict=True):
                    self.found[o.id] = _first(self.found[o.id], w)


def _first(a: DimSharding, b: DimSharding) -> DimSharding:
    """The sharding `a`, with `b` where `a` is unspecified."""
    if isinstance(a, list) and isinstance(b, list):
        return [_first(*pair) for pair in zip(a, b, strict=True)]
    return b if a is None else a


def _refined(a: DimSharding, b: DimSharding, shape: Shape) -> DimSharding:
    """The sharding of a loop's state: the body's, if the initial one is replicated."""
    if isinstance(a, list) and isinstance(b, list):
        return [_refined(*each) for each in zip(a, b, shape.elements, strict=True)]
    return merged([a, b], shape.dims)


def _annotated(i: Instruction, of: list[DimSharding]) -> DimSharding:
    target = i.proto.custom_call_target
    if target in (SHARDING, "SPMDShardToFullShape") and i.proto.HasField("sharding"):
        said = axes_of(i.proto.sharding, len(i.shape.dims))
        if b"unspecified_dims" not in i.proto.backend_config:
            return said
        return merged([said, of[0]], i.shape.dims)
    return of[0] if of and target != "SPMDFullToShardShape" and _same(i) else None


def _same(i: Instruction) -> bool:
    return i.operands[0].shape.dims == i.shape.dims


# Rules give the axes of the result's dimensions, which `_fitting` then checks.
_Of = list["tuple[Axes, ...] | None"]


def _axes(i: Instruction, of: _Of, k: int) -> tuple[Axes, ...]:
    """The sharding of operand k, replicated if it has none yet."""
    return of[k] or ((),) * len(i.operands[k].shape.dims)


def _whole(i: Instruction, of: _Of) -> list[Axes] | None:
    del of
    return [()] * len(i.shape.dims)


def _kept(i: Instruction, of: list[DimSharding], dims: tuple[int, ...]) -> Sequence[Axes] | None:
    parts: list[DimSharding] = []
    operands = list(zip(i.operands, of, strict=True))
    # Broadcast values adapt to the others, not the others to them.
    for o, d in sorted(operands, key=lambda operand: operand[0].opcode == "broadcast"):
        if isinstance(d, tuple) and len(d) == len(dims):
            same = zip(o.shape.dims, d, dims, strict=True)
            parts.append(tuple(a if n == m or i.opcode == "slice" else () for n, a, m in same))
    found = merged(parts, dims)
    return found if isinstance(found, tuple) else None


def _broadcast(i: Instruction, of: _Of) -> list[Axes]:
    result: list[Axes] = [()] * len(i.shape.dims)
    for d, axes in zip(i.proto.dimensions, _axes(i, of, 0), strict=True):
        result[d] = axes
    return result


def _reshape(i: Instruction, of: _Of) -> list[Axes]:
    return _reshaped(i.operands[0].shape.dims, i.shape.dims, _axes(i, of, 0))


def _transpose(i: Instruction, of: _Of) -> list[Axes]:
    axes = _axes(i, of, 0)
    return [axes[d] for d in i.proto.dimensions]


def _reduce(i: Instruction, of: _Of) -> list[Axes]:
    axes = _axes(i, of, 0)
    return [a for d, a in enumerate(axes) if d not in i.proto.dimensions]


def _dot(i: Instruction, of: _Of) -> list[Axes]:
    numbers = i.proto.dot_dimension_numbers
    left, right = _axes(i, of, 0), _axes(i, of, 1)
    batch = [
        left[a] or right[b]
        for a, b in zip(numbers.lhs_batch_dimensions, numbers.rhs_batch_dimensions, strict=True)
    ]
    gone = {*numbers.lhs_batch_dimensions, *numbers.lhs_contracting_dimensions}
    free = [a for d, a in enumerate(left) if d not in gone]
    gone = {*numbers.rhs_batch_dimensions, *numbers.rhs_contracting_dimensions}
    return [*batch, *free, *(a for d, a in enumerate(right) if d not in gone)]


def _gather(i: Instruction, of: _Of) -> list[Axes]:
    """Rows of a table: its axes within a row, and the axes of the indices that it does not use."""
    numbers = wire.message(wire.fields(i.proto.SerializeToString()), 33)
    offset, collapsed = wire.integers(numbers, 1), wire.integers(numbers, 2)
    table, indices = _axes(i, of, 0), list(_axes(i, of, 1))
    last = wire.integer(numbers, 4)
    if last < len(indices):
        del indices[last]
    in_row = [d for d in range(len(table)) if d not in collapsed]
    rows = zip(offset, in_row, strict=False)
    sizes = i.operands[0].shape.dims
    kept = {o: table[d] if i.shape.dims[o] == sizes[d] else () for o, d in rows}
    taken = {a for axes in table for a in axes}
    rest = iter([axes if taken.isdisjoint(axes) else () for axes in indices])
    return [kept[d] if d in kept else next(rest, ()) for d in range(len(i.shape.dims))]


def _scatter(i: Instruction, of: _Of) -> list[Axes] | None:
    """The axes of the updated array; if it has no division, those of the updates within a row."""
    if of[0] is not None:
        return list(of[0])
    numbers = wire.message(wire.fields(i.proto.SerializeToString()), 48)
    window, inserted = wire.integers(numbers, 1), wire.integers(numbers, 2)
    updates = _axes(i, of, len(of) - 1)
    result: list[Axes] = [()] * len(i.shape.dims)
    in_row = [d for d in range(len(result)) if d not in inserted]
    for d, w in zip(in_row, window, strict=False):
        result[d] = updates[w]
    return result


_RULES = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "reduce": _reduce,
    "dot": _dot,
    "gather": _gather,
    "scatter": _scatter,
}
