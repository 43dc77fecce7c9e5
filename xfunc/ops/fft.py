"""Fourier transforms. ``torch.fft`` is built from the three operations here.

NOTE [cotangents with a pending write]: torch's derivative of `_fft_c2r` doubles a part of its
result in place. Functionalisation performs such a write at the next read, which replaces the
tensor behind the wrapper. torch's derivative of `_fft_r2c` holds a reference to the sizes of its
cotangent across that read, and then reads freed memory. So the cotangent is negated twice first,
which reads it, and which XLA removes; a view of it would have the same pending write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from xfunc.graph.node import Node, array_type
from xfunc.ops.emit import instruction
from xfunc.ops.registry import differentiable, kernel
from xfunc.torchlib.functorch import is_watched_at_this_level

Tensor = torch.Tensor


_KINDS = ("FFT", "IFFT", "RFFT", "IRFFT")  # as XLA numbers them


def _fft(x: Node, kind: str, size: int) -> Node:
    """XLA's transform along the last dimension; `size` is that of the real array, if one is."""
    dtype = x.dtype
    if kind == "RFFT":
        type = array_type(dtype.to_complex(), (*x.dims[:-1], size // 2 + 1))
    elif kind == "IRFFT":
        type = array_type(dtype.to_real(), (*x.dims[:-1], size))
    else:
        type = x.type
    return Node("fft", type, (x,), (_KINDS.index(kind), (size,)))


def _scale(normalization: int, n: int) -> float:
    """torch's codes: 0 none, 1 by the square root of n, 2 by n."""
    return (1.0, 1 / math.sqrt(n), 1 / n)[normalization]


def _along(x: Tensor, dim: int, kind: str, size: int) -> Tensor:
    """One transform along one dimension."""
    x = x.movedim(dim, -1)
    if not x.numel():
        length = size // 2 + 1 if kind == "RFFT" else size
        dtype = x.dtype.to_real() if kind == "IRFFT" else x.dtype.to_complex()
        return x.new_zeros((*x.shape[:-1], length), dtype=dtype).movedim(-1, dim)
    return instruction(_fft, x, kind=kind, size=size).movedim(-1, dim)


@kernel("_fft_r2c")
def fft_r2c(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    scale = _scale(normalization, math.prod(x.shape[d] for d in dim))
    if not onesided:
        return _fft_c2c(x.to(x.dtype.to_complex()), dim, scale, True)
    last = dim[-1] % x.ndim
    return _fft_c2c(_along(x, last, "RFFT", x.shape[last]), dim[:-1], scale, True)


@differentiable("_fft_r2c")
def differentiable_fft_r2c(rule: Callable[..., Tensor], x: Tensor, *options: object) -> Tensor:
    # See NOTE [cotangents with a pending write].
    out = rule(x, *options)
    return out.neg().neg() if is_watched_at_this_level(x) else out


@kernel("_fft_c2c")
def fft_c2c(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    return _fft_c2c(x, dim, _scale(normalization, math.prod(x.shape[d] for d in dim)), forward)


def _fft_c2c(x: Tensor, dim: Sequence[int], scale: float, forward: bool) -> Tensor:
    for d in dim:
        n = x.shape[d]
        x = _along(x, d % x.ndim, "FFT" if forward else "IFFT", n)
        scale *= 1 if forward else n  # XLA's inverse divides by n.
    return x if scale == 1 else x * scale


@kernel("_fft_c2r")
def fft_c2r(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    last, n = dim[-1] % x.ndim, last_dim_size
    scale = _scale(normalization, n * math.prod(x.shape[d] for d in dim[:-1]))
    x = _fft_c2c(x, dim[:-1], scale, False)
    x = x.narrow(last, 0, n // 2 + 1)
    return _along(x, last, "IRFFT", n) * n
