"""Tensors as HLO literals."""

# pyright: reportUnknownMemberType=false
# torch declares no elements of `tolist`.
from __future__ import annotations

import functools
import sys

import numpy as np
import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.plain import plain_tensors
from xfunc.hlo.shape import Shape

_REPEATED = {
    torch.bool: "preds",
    torch.int32: "s32s",
    torch.int64: "s64s",
    torch.uint32: "u32s",
    torch.uint64: "u64s",
    torch.float32: "f32s",
    torch.float64: "f64s",
    torch.complex64: "c64s",
    torch.complex128: "c128s",
}
_BYTES = {
    torch.int8: "s8s",
    torch.uint8: "u8s",
    torch.int16: "s16s",
    torch.uint16: "u16s",
    torch.float16: "f16s",
    torch.bfloat16: "bf16s",
    torch.float8_e5m2: "f8e5m2s",
    torch.float8_e4m3fn: "f8e4m3fns",
    torch.float8_e5m2fnuz: "f8e5m2fnuzs",
    torch.float8_e4m3fnuz: "f8e4m3fnuzs",
    torch.float8_e8m0fnu: "f8e8m0fnus",
}


def write_literal(tensor: torch.Tensor, literal: pb.LiteralProto) -> None:
    """Fill an empty `LiteralProto` with the values of a CPU tensor."""
    literal.shape.CopyFrom(Shape(tensor.dtype, tensor.shape).proto)
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    if flat.dtype in _BYTES:
        assert sys.byteorder == "little"  # as the literal is
        setattr(literal, _BYTES[flat.dtype], flat.view(torch.uint8).numpy().tobytes())
        return
    if flat.dtype.is_complex:
        getattr(literal, _REPEATED[flat.dtype]).extend(torch.view_as_real(flat).flatten().tolist())
        return
    getattr(literal, _REPEATED[flat.dtype]).extend(flat.tolist())


def scalar_literal(value: bool | int | float | complex, dtype: torch.dtype) -> pb.LiteralProto:
    """The literal of a number; to be copied, not changed."""
    return _scalar_literal(value, dtype, repr(value))


@functools.lru_cache(1024)
def _scalar_literal(
    value: bool | int | float | complex,
    dtype: torch.dtype,
    _: str,  # 0.0 == -0.0
) -> pb.LiteralProto:
    result = pb.LiteralProto()
    # Inside grad, jvp or functionalize even a new tensor is wrapped, and cannot be read.
    with plain_tensors():
        write_literal(torch.tensor(value, dtype=dtype, device="cpu"), result)
    return result


def scalar_of(constant: pb.HloInstructionProto) -> bool | int | float | None:
    """The real number that a constant is; None for an array, and for numbers of a byte."""
    if constant.shape.dimensions:
        return None
    dtype = Shape.from_proto(constant.shape).dtype
    if dtype in (torch.float16, torch.bfloat16):
        bits: bytes = getattr(constant.literal, _BYTES[dtype])
        if len(bits) != 2:
            return None
        if dtype is torch.float16:
            return float(np.frombuffer(bits, "<f2")[0])
        return float((np.frombuffer(bits, "<u2").astype(np.uint32) << 16).view(np.float32)[0])
    if dtype.is_complex or dtype not in _REPEATED:
        return None
    values = getattr(constant.literal, _REPEATED[dtype])
    return values[0] if len(values) == 1 else None
