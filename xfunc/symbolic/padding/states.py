"""Values of a bucket's program, tuples of them, and the parts of such a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from xfunc.hlo import Shape
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.edit import called_from
from xfunc.symbolic.padding.emit import array
from xfunc.symbolic.padding.layouts import MaybeLayout, own
from xfunc.symbolic.padding.values import PaddedValue, State
from xfunc.symbolic.polynomial import Polynomial


def shape_of(x: State) -> pb.ShapeProto:
    """The shape of a value in the bucket."""
    if isinstance(x, PaddedValue):
        return array(x.element_type, x.dims)
    return tuple_of(map(shape_of, x))


def tuple_of(shapes: Iterable[pb.ShapeProto]) -> pb.ShapeProto:
    """A tuple's shape."""
    return pb.ShapeProto(element_type=pb.TUPLE, tuple_shapes=shapes)


def flat(shape: Shape) -> list[Shape]:
    """The arrays in a shape."""
    return [s for e in shape.elements for s in flat(e)] if shape.is_tuple else [shape]


def signature(x: State) -> object:
    """The key that distinguishes the programs made from one body."""
    if isinstance(x, list):
        return tuple(map(signature, x))
    pad_values = [
        tuple(sorted((d, repr(v)) for d, v in known.items()))
        for known in (x.pad_values, x.nan_lines)
    ]
    return (x.dims, x.element_type, x.sizes, x.layouts, *pad_values, repr(x.const))


def forgotten(x: State) -> State:
    """The value without knowledge about its contents, which a loop may change."""
    if isinstance(x, list):
        return [forgotten(e) for e in x]
    return dataclasses.replace(x, pad_values={}, nan_lines={}, const=None)


def joined(a: State, b: State) -> State:
    """The knowledge common to two values."""
    if isinstance(a, list):
        assert isinstance(b, list)
        return [joined(x, y) for x, y in zip(a, b, strict=True)]
    assert isinstance(b, PaddedValue)
    layouts: list[MaybeLayout] = []
    for d in range(len(a.dims)):
        p, q = a.layouts[d], b.layouts[d]
        layouts.append(q if p is None else p)
    return dataclasses.replace(a, layouts=tuple(layouts), pad_values={}, nan_lines={}, const=None)


def varies(x: State) -> bool:
    """Whether a size of it depends on a symbol."""
    if isinstance(x, list):
        return any(map(varies, x))
    return any(isinstance(s, Polynomial) for s in x.sizes)


def whole(shape: Shape) -> State:
    """A value that depends on no size."""
    if shape.is_tuple:
        return [whole(e) for e in shape.elements]
    layouts = tuple(own(n, n) for n in shape.dims)
    return PaddedValue(0, shape.element_type, shape.dims, shape.dims, layouts)


def reachable(proto: pb.HloModuleProto) -> pb.HloModuleProto:
    """The module with only the computations its entry runs, callees before their callers."""
    by_id = {c.id: c for c in proto.computations}
    result = pb.HloModuleProto()
    result.CopyFrom(proto)
    del result.computations[:]
    result.computations.extend(by_id[k] for k in called_from(proto, proto.entry_computation_id))
    return result
