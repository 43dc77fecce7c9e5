"""Factorisations that only LAPACK, and so only the CPU, has: XLA has no expansion of them."""

from __future__ import annotations

import torch

from xfunc.graph.node import array_type
from xfunc.ops.emit import lapack
from xfunc.ops.factorisations import no_info
from xfunc.ops.registry import kernel
from xfunc.trace import tracing

Tensor = torch.Tensor


@kernel("linalg_eig")
def eig(a: Tensor) -> tuple[Tensor, Tensor]:
    if tracing.current() is None:
        values, vectors = torch.linalg.eig(a.cpu())
        return values.to(a.device), vectors.to(a.device)
    dtype = a.dtype.to_complex()
    if not a.numel():
        return a.new_zeros(a.shape[:-1], dtype=dtype), a.new_zeros(a.shape, dtype=dtype)
    result = [array_type(dtype, tuple(s)) for s in (a.shape[:-1], a.shape)]
    return lapack("eig", a, result=result)


@kernel("_linalg_eigvals")
def eigvals(a: Tensor) -> Tensor:
    if tracing.current() is None:
        return torch.linalg.eigvals(a.cpu()).to(a.device)
    dtype = a.dtype.to_complex()
    if not a.numel():
        return a.new_zeros(a.shape[:-1], dtype=dtype)
    return lapack("eigvals", a, result=array_type(dtype, tuple(a.shape[:-1])))


@kernel("linalg_ldl_factor_ex")
def ldl_factor_ex(
    a: Tensor, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    if tracing.current() is None:
        found = torch.linalg.ldl_factor_ex(a.cpu(), hermitian=hermitian, check_errors=check_errors)
        packed, pivots, info = (x.to(a.device) for x in found)
        return packed, pivots, info
    if not a.numel():
        return a.clone(), torch.zeros(a.shape[:-1], dtype=torch.int32, device=a.device), no_info(a)
    shapes = [(a.dtype, a.shape), (torch.int32, a.shape[:-1]), (torch.int32, a.shape[:-2])]
    result = [array_type(dtype, tuple(s)) for dtype, s in shapes]
    return lapack("ldl hermitian" if hermitian else "ldl", a, result=result)


@kernel("linalg_ldl_solve")
def ldl_solve(packed: Tensor, pivots: Tensor, b: Tensor, *, hermitian: bool = False) -> Tensor:
    if tracing.current() is None:
        inputs = (x.cpu() for x in (packed, pivots, b))
        return torch.linalg.ldl_solve(*inputs, hermitian=hermitian).to(b.device)
    batch = torch.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    result = array_type(b.dtype, (*batch, *b.shape[-2:]))
    if 0 in result.dims:
        return b.new_zeros(result.dims)
    name = "ldl_solve hermitian" if hermitian else "ldl_solve"
    return lapack(name, packed, pivots, b, result=result)
