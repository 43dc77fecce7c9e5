"""`Shape`: the type of an HLO value."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.errors import InvalidHloError


class _Type(NamedTuple):
    number: pb.PrimitiveType
    name: str
    bits: int
    dtype: torch.dtype | None = None


_TYPES = (
    _Type(pb.PRED, "pred", 8, torch.bool),
    _Type(pb.S2, "s2", 2),
    _Type(pb.S4, "s4", 4),
    _Type(pb.S8, "s8", 8, torch.int8),
    _Type(pb.S16, "s16", 16, torch.int16),
    _Type(pb.S32, "s32", 32, torch.int32),
    _Type(pb.S64, "s64", 64, torch.int64),
    _Type(pb.U2, "u2", 2),
    _Type(pb.U4, "u4", 4),
    _Type(pb.U8, "u8", 8, torch.uint8),
    _Type(pb.U16, "u16", 16, torch.uint16),
    _Type(pb.U32, "u32", 32, torch.uint32),
    _Type(pb.U64, "u64", 64, torch.uint64),
    _Type(pb.F16, "f16", 16, torch.float16),
    _Type(pb.F32, "f32", 32, torch.float32),
    _Type(pb.BF16, "bf16", 16, torch.bfloat16),
    _Type(pb.F64, "f64", 64, torch.float64),
    _Type(pb.F8E5M2, "f8e5m2", 8, torch.float8_e5m2),
    _Type(pb.F8E4M3, "f8e4m3", 8),
    _Type(pb.F8E4M3FN, "f8e4m3fn", 8, torch.float8_e4m3fn),
    _Type(pb.F8E4M3B11FNUZ, "f8e4m3b11fnuz", 8),
    _Type(pb.F8E3M4, "f8e3m4", 8),
    _Type(pb.F8E5M2FNUZ, "f8e5m2fnuz", 8, torch.float8_e5m2fnuz),
    _Type(pb.F8E4M3FNUZ, "f8e4m3fnuz", 8, torch.float8_e4m3fnuz),
    _Type(pb.F4E2M1FN, "f4e2m1fn", 4),
    _Type(pb.F8E8M0FNU, "f8e8m0fnu", 8, torch.float8_e8m0fnu),
    _Type(pb.C64, "c64", 64, torch.complex64),
    _Type(pb.C128, "c128", 128, torch.complex128),
    _Type(pb.OPAQUE_TYPE, "opaque", 0),
    _Type(pb.TOKEN, "token", 0),
)
_OF_NUMBER: dict[int, _Type] = {t.number: t for t in _TYPES}
_OF_DTYPE = {t.dtype: t for t in _TYPES if t.dtype is not None}


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Shape:
    """The shape of an array, or of a tuple of shapes.

    ``Shape(torch.float32, (3, 4))`` is an array and prints as ``f32[3,4]``;
    ``Shape.of_tuple([...])`` is a tuple. Layouts are not part of it: two shapes that differ only in
    layout are equal.

    Attributes:
        element_type: XLA's number of the element type.
        dims: sizes of an array; empty for a tuple.
        elements: shapes of a tuple's elements; empty for an array.
    """

    element_type: int
    dims: tuple[int, ...]
    elements: tuple[Shape, ...]

    def __init__(self, dtype: torch.dtype, dims: Iterable[int] = ()) -> None:
        if dtype not in _OF_DTYPE:
            raise InvalidHloError(f"XLA has no element type for {dtype}")
        self._set(_OF_DTYPE[dtype].number, tuple(dims), ())

    def _set(self, number: int, dims: tuple[int, ...], elements: tuple[Shape, ...]) -> None:
        object.__setattr__(self, "element_type", number)
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "elements", elements)

    @classmethod
    def of_tuple(cls, elements: Iterable[Shape]) -> Shape:
        """The shape of a tuple."""
        self = cls.__new__(cls)
        self._set(pb.TUPLE, (), tuple(elements))
        return self

    @classmethod
    def from_proto(cls, proto: pb.ShapeProto) -> Shape:
        """Read a `ShapeProto`; its layout is dropped.

        Raises:
            InvalidHloError: an unknown element type, or a dynamic dimension.
        """
        number = proto.element_type
        if number == pb.TUPLE:
            return cls.of_tuple(map(cls.from_proto, proto.tuple_shapes))
        if number not in _OF_NUMBER:
            raise InvalidHloError(f"unknown element type {number}")
        if any(proto.is_dynamic_dimension):
            raise InvalidHloError("a dimension of dynamic size, which xfunc does not support")
        return cls._of_array(number, tuple(proto.dimensions))

    @classmethod
    @functools.lru_cache(4096)
    def _of_array(cls, number: int, dims: tuple[int, ...]) -> Shape:
        self = cls.__new__(cls)
        self._set(number, dims, ())
        return self

    def with_dims(self, dims: Iterable[int]) -> Shape:
        """An array of the same elements, of other sizes."""
        return Shape._of_array(self.element_type, tuple(dims))

    def to_proto(self) -> pb.ShapeProto:
        """A new `ShapeProto`, laid out row-major."""
        proto = pb.ShapeProto()
        proto.CopyFrom(self.proto)
        return proto

    @functools.cached_property
    def proto(self) -> pb.ShapeProto:
        """The `ShapeProto`, laid out row-major; to be copied, not changed."""
        if self.element_type != pb.TUPLE:
            return _row_major(self.element_type, self.dims)
        proto = pb.ShapeProto(element_type=pb.TUPLE)
        proto.tuple_shapes.extend([e.proto for e in self.elements])
        return proto

    @property
    def is_tuple(self) -> bool:
        """Whether it is a tuple."""
        return self.element_type == pb.TUPLE

    @property
    def dtype(self) -> torch.dtype:
        """The element type of an array.

        Raises:
            InvalidHloError: it is not an array, or torch has no such element type.
        """
        result = None if self.is_tuple else _OF_NUMBER[self.element_type].dtype
        if result is None:
            raise InvalidHloError(f"{self} has no torch dtype")
        return result

    @property
    def bytes(self) -> int:
        """Size of the data in bytes, without padding; 0 for a token."""
        if self.is_tuple:
            return sum(e.bytes for e in self.elements)
        return (math.prod(self.dims) * _OF_NUMBER[self.element_type].bits + 7) // 8

    def __str__(self) -> str:
        if self.is_tuple:
            return f"({', '.join(map(str, self.elements))})"
        kind = _OF_NUMBER[self.element_type]
        return f"{kind.name}[{','.join(map(str, self.dims))}]"

    def __repr__(self) -> str:
        return f"Shape({self})"


@functools.lru_cache(4096)
def _row_major(number: pb.PrimitiveType, dims: tuple[int, ...]) -> pb.ShapeProto:
    """The `ShapeProto` of an array; to be copied, not changed."""
    proto = pb.ShapeProto(element_type=number)
    if _OF_NUMBER[number].bits:
        proto.dimensions.extend(dims)
        proto.is_dynamic_dimension.extend([False] * len(dims))
        proto.layout.minor_to_major.extend(range(len(dims) - 1, -1, -1))
        proto.layout.SetInParent()  # a scalar's layout is empty, but it has one
    return proto
