"""The parts of an HLO instruction that may depend on sizes, and all its other parts."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf import unknown_fields

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import wire

# Fields of HloInstructionProto that are missing in xfunc's description, and the numbers in them.
_WINDOW, _PADDING, _GATHER_SIZES = 15, 21, 34
_WINDOW_FIELDS = {1: 1, 2: 1, 3: 0, 4: 0, 5: 1, 6: 1, 7: 0}  # defaults by field number
_PADDING_FIELDS = {1: 0, 2: 0, 3: 0}

_INTEGERS = {
    pb.S32: "s32s",
    pb.S64: "s64s",
    pb.U32: "u32s",
    pb.U64: "u64s",
}
_BYTES = {pb.S8: ("s8s", "b"), pb.U8: ("u8s", "B"), pb.S16: ("s16s", "h"), pb.U16: ("u16s", "H")}
_FLOATS = {pb.F32: "f32s", pb.F64: "f64s"}
_DIGITS: dict[int, int] = {pb.F64: 53, pb.F32: 24, pb.F16: 11, pb.BF16: 8}


class Numbers(NamedTuple):
    """An instruction, taken apart.

    Attributes:
        rest: the parts that must be equal at all sizes.
        lists: the numbers that may differ, by kind:
            ``dims``: of the result, or of all elements of a tuple, one after the other;
            ``slice``: start, limit and stride of each dimension;
            ``sizes``: of a dynamic slice, or of the slices of a gather;
            ``window``: size, stride, padding (low, high), dilations (window, base) and whether it
            is reversed, of each dimension;
            ``padding``: low, high and interior of each dimension;
            ``literal``: a scalar;
            ``progression``: start and step of a constant such as 3, 5, 7, 9.
    """

    rest: tuple[Any, ...]
    lists: Mapping[str, tuple[int | float, ...]]


def taken_apart(
    i: pb.HloInstructionProto, places: Mapping[int, int], computations: Mapping[int, int]
) -> Numbers:
    """An instruction taken apart; it refers to others by their positions in the module."""
    dims: list[int] = []
    types = tuple(_types(i.shape, dims))
    lists: dict[str, tuple[int | float, ...]] = {"dims": tuple(dims)}
    if i.slice_dimensions:
        lists["slice"] = tuple(n for s in i.slice_dimensions for n in (s.start, s.limit, s.stride))
    if i.dynamic_slice_sizes:
        lists["sizes"] = tuple(i.dynamic_slice_sizes)
    rest = pb.HloInstructionProto()
    rest.CopyFrom(i)
    unknown = []
    for field in unknown_fields.UnknownFieldSet(i):
        number, data = field.field_number, field.data
        if number == _WINDOW:
            lists["window"] = _numbers(data, _WINDOW_FIELDS)
        elif number == _PADDING:
            lists["padding"] = _numbers(data, _PADDING_FIELDS)
        elif number == _GATHER_SIZES:
            sizes = wire.integers({0: [data]}, 0)
            lists["sizes"] = (*lists.get("sizes", ()), *sizes)
        else:
            unknown.append((number, str(data) if not isinstance(data, (int, bytes)) else data))
    rest.DiscardUnknownFields()
    scalar = scalar_of(i)
    if scalar is not None:
        lists["literal"] = (scalar,)
        rest.ClearField("literal")
    elif (steps := progression_of(i)) is not None:
        lists["progression"] = steps
        rest.ClearField("literal")
    for name in _APART:
        rest.ClearField(name)
    refers = tuple(
        tuple(places[k] for k in ids) for ids in (i.operand_ids, i.control_predecessor_ids)
    )
    calls = tuple(computations[k] for k in i.called_computation_ids)
    stated = rest.SerializeToString(deterministic=True)
    return Numbers((types, refers, calls, tuple(unknown), stated), lists)


_APART = (
    "name id shape operand_ids control_predecessor_ids called_computation_ids metadata "
    "slice_dimensions dynamic_slice_sizes"
).split()


def scalar_of(i: pb.HloInstructionProto) -> int | float | None:
    """The value of a scalar constant; None for anything else, and for complex numbers."""
    kind = i.shape.element_type
    if i.opcode != "constant" or i.shape.dimensions:
        return None
    if kind in _INTEGERS:
        return getattr(i.literal, _INTEGERS[kind])[0]
    if kind in _FLOATS:
        return getattr(i.literal, _FLOATS[kind])[0]
    if kind in _BYTES:
        name, code = _BYTES[kind]
        return struct.unpack(f"<{code}", getattr(i.literal, name))[0]
    if kind == pb.F16:
        return struct.unpack("<e", i.literal.f16s)[0]
    if kind == pb.BF16:
        return struct.unpack("<f", b"\0\0" + i.literal.bf16s)[0]
    return None


def progression_of(i: pb.HloInstructionProto) -> tuple[int, int] | None:
    """Start and step of a constant that is an arithmetic progression of whole numbers."""
    kind = i.shape.element_type
    name = _INTEGERS.get(kind) or _FLOATS.get(kind)
    if i.opcode != "constant" or len(i.shape.dimensions) != 1 or name is None:
        return None
    values = getattr(i.literal, name)
    if len(values) < 2 or not all(math.isfinite(v) and v == int(v) for v in values[:2]):
        return None
    start, step = int(values[0]), int(values[1] - values[0])
    if any(v != start + k * step for k, v in enumerate(values)):
        return None
    return start, step


def digits(element_type: int) -> int:
    """The precision of a floating type in bits; 0 for other types."""
    return _DIGITS.get(element_type, 0)


def is_close(a: float, b: float, element_type: int) -> bool:
    """Whether two numbers are the same up to rounding in a floating type."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    if math.isinf(a) or math.isinf(b):
        return False
    return abs(a - b) <= max(abs(a), abs(b)) * 2.0 ** (2 - digits(element_type))


def _types(shape: pb.ShapeProto, dims: list[int]) -> Any:
    """Element types and ranks of a shape, as nested tuples; collects its dimensions."""
    if shape.element_type == pb.TUPLE:
        return ["(", *(tuple(_types(s, dims)) for s in shape.tuple_shapes)]
    dims.extend(shape.dimensions)
    return [shape.element_type, len(shape.dimensions)]


def _numbers(data: Any, defaults: Mapping[int, int]) -> tuple[int, ...]:
    """The integer fields of each dimension of a window or a padding."""
    found = []
    for dimension in wire.fields(data).get(1, ()):
        fields = wire.fields(dimension)
        found += [wire.integer(fields, number, default) for number, default in defaults.items()]
    return tuple(found)
