"""Instructions for numerical kernels, beyond those that `ComputationBuilder` has methods for.

Each function adds one instruction and returns its result. XLA checks its own requirements on
shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.computation import ComputationBuilder, Value
from xfunc.hlo.shape import Shape
from xfunc.hlo.wire import integer_of, message_of

_FFT = {"FFT": pb.FFT, "IFFT": pb.IFFT, "RFFT": pb.RFFT, "IRFFT": pb.IRFFT}
FftKind = Literal["FFT", "IFFT", "RFFT", "IRFFT"]


def fft(body: ComputationBuilder, x: Value, kind: FftKind, sizes: Sequence[int]) -> Value:
    """The discrete Fourier transform over the last dimensions, at most three.

    Args:
        body: the computation to add to.
        x: real for RFFT, else complex.
        kind: IFFT and IRFFT divide by the number of elements.
        sizes: of the transformed dimensions; of the real array, for RFFT and IRFFT.
    """
    dims, dtype = [*x.shape.dims], x.shape.dtype
    if kind == "RFFT":
        dims[-1], dtype = sizes[-1] // 2 + 1, dtype.to_complex()
    elif kind == "IRFFT":
        dims[-1], dtype = sizes[-1], dtype.to_real()
    value, proto = body.instruction("fft", Shape(dtype, dims), [x])
    proto.fft_type = _FFT[kind]
    proto.fft_length.extend(sizes)
    return value


def cholesky(body: ComputationBuilder, a: Value) -> Value:
    """The lower factor of ``[..., n, n]`` matrices, NaN where there is none.

    Only the lower triangle is read; the result above the diagonal is undefined.
    """
    value, proto = body.instruction("cholesky", a.shape, [a])
    proto.cholesky_options.lower = True
    return value


def triangular_solve(
    body: ComputationBuilder,
    a: Value,
    b: Value,
    *,
    left: bool,
    lower: bool,
    unit_diagonal: bool,
) -> Value:
    """The `x` of ``a @ x = b``, or of ``x @ a = b`` if not `left`, for a triangular `a`."""
    value, proto = body.instruction("triangular-solve", b.shape, [a, b])
    options = proto.triangular_solve_options
    options.left_side, options.lower, options.unit_diagonal = left, lower, unit_diagonal
    options.transpose_a = pb.TriangularSolveOptions.NO_TRANSPOSE
    return value


def bitcast_convert(body: ComputationBuilder, x: Value, dtype: torch.dtype) -> Value:
    """The same bits as another dtype of the same size."""
    return body.instruction("bitcast-convert", Shape(dtype, x.shape.dims), [x])[0]


def part(body: ComputationBuilder, x: Value, which: Literal["real", "imag"]) -> Value:
    """The real or the imaginary parts of a complex array."""
    return body.instruction(which, Shape(x.shape.dtype.to_real(), x.shape.dims), [x])[0]


def reduce(
    body: ComputationBuilder, x: Value, start: Value, dims: Sequence[int], opcode: str
) -> Value:
    """Combine the elements along dimensions, from `start` on, by a binary operation."""
    kept = [n for d, n in enumerate(x.shape.dims) if d not in dims]
    value, proto = body.instruction("reduce", Shape(x.shape.dtype, kept), [x, start])
    proto.dimensions.extend(dims)
    proto.called_computation_ids.append(_combination(body, x, opcode))
    return value


def prefixes(body: ComputationBuilder, x: Value, start: Value, dim: int, opcode: str) -> Value:
    """Combine each element with those before it along a dimension, by a binary operation.

    Args:
        body: the computation to add to.
        x: an array of at least one element.
        start: the neutral element.
        dim: the dimension.
        opcode: of the operation, which is associative.
    """
    value, proto = body.instruction("reduce-window", x.shape, [x, start])
    proto.called_computation_ids.append(_combination(body, x, opcode))
    window = b""
    for d, n in enumerate(x.shape.dims):
        size = n if d == dim else 1
        numbers = (size, 1, size - 1, 0, 1, 1, 0)  # with stride, padding, dilations and reversal
        fields = b"".join([integer_of(k + 1, n) for k, n in enumerate(numbers)])
        window += message_of(1, fields)
    proto.MergeFromString(message_of(_WINDOW, window))
    return value


_WINDOW = 15  # field of HloInstructionProto


def _combination(body: ComputationBuilder, x: Value, opcode: str) -> int:
    """The id of a computation that combines two elements."""
    scalar = Shape(x.shape.dtype)
    inner = body.module.computation(opcode)
    pair = [inner.parameter(scalar), inner.parameter(scalar)]
    return inner.build(inner.instruction(opcode, scalar, pair)[0]).id
