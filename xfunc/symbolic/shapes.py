"""Shapes with polynomials as dimensions."""

from __future__ import annotations

import dataclasses

from xfunc.hlo import Shape
from xfunc.hlo import hlo_pb2 as pb
from xfunc.symbolic.polynomial import Env, Size, as_polynomial, product, simplest, value

_ONE = pb.ShapeProto(element_type=pb.PRED)


@dataclasses.dataclass(frozen=True)
class SymbolicShape:
    """The shape of an array or a tuple: a `Shape` with sizes that may depend on symbols.

    Attributes:
        element_type: XLA's number of the element type.
        dims: sizes of an array; empty for a tuple.
        elements: shapes of a tuple's elements; empty for an array.
    """

    element_type: int
    dims: tuple[Size, ...] = ()
    elements: tuple[SymbolicShape, ...] = ()

    @property
    def is_tuple(self) -> bool:
        """Whether it is a tuple."""
        return self.element_type == pb.TUPLE

    @property
    def bytes(self) -> Size:
        """Size of the data in bytes, without padding."""
        if self.is_tuple:
            total = sum((as_polynomial(e.bytes) for e in self.elements), as_polynomial(0))
            return simplest(total)
        return product([*self.dims, _scalar(self.element_type).bytes])

    def at(self, env: Env) -> Shape:
        """The shape for given values of the symbols."""
        if self.is_tuple:
            return Shape.of_tuple(e.at(env) for e in self.elements)
        proto = _scalar(self.element_type).to_proto()
        dims = [value(d, env) for d in self.dims]
        proto.dimensions.extend(dims)
        proto.is_dynamic_dimension.extend([False] * len(dims))
        return Shape.from_proto(proto)

    def __str__(self) -> str:
        if self.is_tuple:
            return f"({', '.join(map(str, self.elements))})"
        kind = str(_scalar(self.element_type)).removesuffix("[]")
        return f"{kind}[{','.join(map(str, self.dims))}]"


def _scalar(element_type: int) -> Shape:
    proto = pb.ShapeProto()
    proto.CopyFrom(_ONE)
    proto.element_type = element_type  # pyright: ignore[reportAttributeAccessIssue]
    return Shape.from_proto(proto)
