"""Products of matrices of 8 floating bits, with their scales: see `xfunc.torchlib.float8`."""

from __future__ import annotations

import torch

from xfunc.graph.node import Node, array_type
from xfunc.ops.emit import instruction
from xfunc.ops.registry import batched, kernel
from xfunc.torchlib.values import FLOAT8

Tensor = torch.Tensor


def _product(a: Node, b: Node) -> Node:
    type = array_type(torch.float32, (*a.dims[:-1], *b.dims[1:]))
    return Node("dot", type, (a, b), ((1,), (0,), (), ()))


def _check(
    a: Tensor, b: Tensor, scales: tuple[Tensor, Tensor], result: Tensor | None, bias: Tensor | None
) -> None:
    # Without a kernel for `meta` tensors of this form, nothing else has looked at the arguments.
    for x in (a, b):
        if x.dtype not in FLOAT8:
            raise RuntimeError(f"_scaled_mm multiplies float8 matrices, but one is {x.dtype}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise RuntimeError(
            f"_scaled_mm cannot multiply arrays of shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if result is not None:
        raise RuntimeError("_scaled_mm with scale_result is not supported: multiply the result")
    if bias is not None and tuple(bias.shape) != (b.shape[1],):
        raise RuntimeError(
            f"_scaled_mm adds a bias of {b.shape[1]} numbers, but it has shape {tuple(bias.shape)}"
        )
    for scale, rows in zip(scales, ((a.shape[0], 1), (1, b.shape[1])), strict=True):
        if scale.numel() != 1 and tuple(scale.shape) != rows:
            raise RuntimeError(
                f"_scaled_mm takes a scale of one number, or of shape {rows}, not of shape "
                f"{tuple(scale.shape)}"
            )


def _scaled(found: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None) -> Tensor:
    for scale in (scale_a, scale_b):
        found = found * (scale.reshape(()) if scale.numel() == 1 else scale)
    return found if bias is None else found + bias


@kernel("_scaled_mm")
def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    _check(a, b, (scale_a, scale_b), scale_result, bias)
    found = _scaled(instruction(_product, a, b), scale_a, scale_b, bias)
    return found.to(out_dtype or a.dtype)


@batched("_scaled_mm")  # torch has no rule.
def scaled_mm_of_all(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    _check(a, b, (scale_a, scale_b), scale_result, bias)
    return _scaled(a.float() @ b.float(), scale_a, scale_b, bias).to(out_dtype or a.dtype)
