"""Factorisations of matrices, and products of reflections."""

from __future__ import annotations

import torch

from xfunc.graph import build
from xfunc.graph.build import CustomCall
from xfunc.graph.node import Node, array_type
from xfunc.ops.emit import composite, instruction, lapack, loop
from xfunc.ops.registry import batched, kernel
from xfunc.trace import tracing

Tensor = torch.Tensor


def eye(n: int, like: Tensor) -> Tensor:
    """The identity."""
    return torch.eye(n, dtype=like.dtype, device=like.device)


def no_info(a: Tensor) -> Tensor:
    """LAPACK's success code for each matrix."""
    return torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)


@kernel("_linalg_check_errors")
def check_errors(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    # A program can't raise: a matrix with no factor gives NaN or infinity, as in JAX.
    if tracing.current() is None and info.cpu().any():
        raise torch.linalg.LinAlgError(f"{api_name}: the input is singular or not definite")


# -- Cholesky -------------------------------------------------------------------------------------


def _cholesky(a: Node) -> Node:
    """The lower factor, NaN where there is none; undefined above the diagonal."""
    return Node("cholesky", a.type, (a,), ())


@kernel("linalg_cholesky_ex")
def cholesky_ex(
    a: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    if not a.numel():
        return a.clone(), no_info(a)
    (factor,) = composite(f"potrf {'upper' if upper else 'lower'}", _potrf, a, upper=upper)
    bad = factor.diagonal(0, -2, -1)
    bad = (bad != bad).to(torch.int32)
    first = torch.where(bad.any(-1), bad.argmax(-1) + 1, 0).to(torch.int32)
    return factor, first


def _potrf(a: Tensor, *, upper: bool) -> tuple[Tensor]:
    factor = torch.tril(instruction(_cholesky, a.mH.contiguous() if upper else a))
    return (factor.mH if upper else factor,)


# -- LU -------------------------------------------------------------------------------------------


def _lu_step(k: Tensor, a: Tensor, pivots: Tensor, *, pivot: bool) -> tuple[Tensor, Tensor]:
    """Eliminate column k of ``[b, m, n]`` matrices."""
    _, m, n = a.shape
    row = torch.arange(m, device=a.device)[:, None]
    column = torch.arange(n, device=a.device)
    at = k.reshape(1).to(torch.int32)  # libtpu crashes where a loop indexes by int64
    here = a.index_select(1, at)
    if pivot:
        size = _pivot_size(a.index_select(2, at)[..., 0])
        best = torch.where(row[:, 0] >= k, size, -1.0).argmax(-1)
        best = torch.where(size.isnan().any(-1), k, best)[:, None, None]
        there = a.gather(1, best.expand(-1, 1, n))
        a = torch.where(row == k, there, torch.where(row == best, here, a))
        pivots = torch.where(
            torch.arange(pivots.shape[1], device=a.device) == k, best[..., 0], pivots
        )
        here = there
    divisor = here.index_select(2, at)
    factor = a.index_select(2, at) / torch.where(divisor == 0, 1, divisor)
    factor = torch.where(row > k, factor, 0)
    a = a - factor * torch.where(column > k, here, 0)
    return torch.where((row > k) & (column == k), factor, a), pivots


def _pivot_size(x: Tensor) -> Tensor:
    """The size by which pivots are chosen; for complex numbers, that of LAPACK's izamax."""
    return x.real.abs() + x.imag.abs() if x.is_complex() else x.abs()


# NOTE [composites of transposed matrices]: those named after LAPACK routines take and return
# transposed matrices, because LAPACK is column-major and XLA row-major. In the usual case, where
# the factors of a transposed matrix are needed, nothing is transposed at all.
def lu(a: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor]:
    """Both factors in one matrix, and the row that each row was swapped with, counted from 1."""
    if not a.numel():
        *batch, m, n = a.shape
        pivots = torch.arange(1, min(m, n) + 1, dtype=torch.int32, device=a.device)
        return a.clone(), pivots.expand(*batch, -1).clone()
    if pivot:
        packed, pivots = composite("getrf", _getrf, a.mT)
        return packed.mT, pivots
    return _eliminated(a, pivot=False)


def _getrf(a: Tensor) -> tuple[Tensor, Tensor]:
    packed, pivots = _eliminated(a.mT)
    return packed.mT, pivots


def _eliminated(a: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor]:
    *batch, m, n = a.shape
    k = min(m, n)
    start = torch.arange(k, device=a.device).expand(a.shape[:-2].numel(), k).clone()
    packed, pivots = loop(_lu_step, k, [a.reshape(-1, m, n), start], pivot=pivot)
    return packed.reshape(a.shape), pivots.reshape(*batch, k).to(torch.int32) + 1


def _swap(k: Tensor, order: Tensor, pivots: Tensor) -> tuple[Tensor]:
    at = k.reshape(1).to(torch.int32)  # see `_lu_step`
    place = torch.arange(order.shape[1], device=order.device)
    other = pivots.index_select(1, at)
    here, there = order.index_select(1, at), order.gather(1, other)
    return (torch.where(place == k, there, torch.where(place == other, here, order)),)


def order_of(pivots: Tensor, m: int) -> Tensor:
    """The row permutation that the swaps amount to."""
    return (
        composite("order", _swapped, pivots, m=m)[0] if pivots.numel() else _swapped(pivots, m)[0]
    )


def _swapped(pivots: Tensor, m: int) -> tuple[Tensor]:
    *batch, k = pivots.shape
    order = torch.arange(m, device=pivots.device).expand(*batch, m).clone()
    if not pivots.numel():
        return (order,)
    held = [(pivots.to(torch.int64) - 1).reshape(-1, k)]
    return (loop(_swap, k, [order.reshape(-1, m)], held)[0].reshape(*batch, m),)


def _permutation(pivots: Tensor, m: int, like: Tensor) -> Tensor:
    order = order_of(pivots, m)
    rows = torch.arange(m, device=like.device)
    return (rows[:, None] == order[..., None, :]).to(like.dtype)


def first_zero(packed: Tensor) -> Tensor:
    """The first zero on the diagonal, counted from 1."""
    if not packed.numel():
        return no_info(packed)
    zero = (packed.diagonal(0, -2, -1) == 0).to(torch.int32)
    return torch.where(zero.any(-1), zero.argmax(-1) + 1, 0).to(torch.int32)


@kernel("linalg_lu_factor_ex")
def lu_factor_ex(
    a: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    packed, pivots = lu(a, pivot)
    return packed, pivots, first_zero(packed)


@kernel("lu_unpack")
def lu_unpack(
    packed: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    *_, m, n = packed.shape
    k = min(m, n)
    none = packed.new_zeros(0)
    lower = packed[..., :, :k].tril(-1) + torch.eye(m, k, dtype=packed.dtype, device=packed.device)
    upper = packed[..., :k, :].triu()
    p = _permutation(pivots, m, packed) if unpack_pivots else none
    return (p, lower, upper) if unpack_data else (p, none, none)


@kernel("linalg_lu")
def linalg_lu(a: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    packed, pivots = lu(a, pivot)
    p, lower, upper = lu_unpack(packed, pivots)
    return (p if pivot else a.new_zeros(0)), lower, upper


# -- QR -------------------------------------------------------------------------------------------


def _qr(a: Node) -> list[Node]:
    *batch, m, n = a.dims
    taus = array_type(a.dtype, (*batch, min(m, n)))
    return build.several("custom-call", [a.type, taus], (a,), CustomCall("Qr"))


def _reflections(a: Node, taus: Node) -> Node:
    how = CustomCall("ProductOfElementaryHouseholderReflectors")
    return Node("custom-call", a.type, (a, taus), how)


@kernel("geqrf")
def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    if not a.numel():
        return a.clone(), a.new_zeros((*a.shape[:-2], min(a.shape[-2:])))
    return instruction(_qr, a)


@kernel("linalg_householder_product")
def householder_product(a: Tensor, tau: Tensor) -> Tensor:
    if not a.numel() or not tau.numel():
        return torch.eye(*a.shape[-2:], dtype=a.dtype, device=a.device).expand(a.shape).clone()
    return instruction(_reflections, a, tau)


def _square(a: Tensor, m: int) -> Tensor:
    """Pad a matrix with zero columns, to m columns."""
    return torch.nn.functional.pad(a, (0, m - a.shape[-1]))


@kernel("linalg_qr")
def qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    *_, m, n = a.shape
    packed, taus = geqrf(a)
    rows = m if mode == "complete" else min(m, n)
    r = packed[..., :rows, :].triu()
    if mode == "r":
        return a.new_zeros(0), r
    reflectors = packed[..., :, :rows] if rows <= n else _square(packed, rows)
    return householder_product(reflectors.contiguous(), taus), r


# -- singular values ------------------------------------------------------------------------------


@kernel("_linalg_svd")
def svd(
    a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = a.shape
    k = min(m, n)
    real = a.dtype.to_real() if a.is_complex() else a.dtype
    if not a.numel():
        s = torch.zeros(*batch, k, dtype=real, device=a.device)
        rows, columns = (m, n) if full_matrices else (k, k)
        u = torch.eye(m, rows, dtype=a.dtype, device=a.device).expand(*batch, m, rows)
        v = torch.eye(columns, n, dtype=a.dtype, device=a.device).expand(*batch, columns, n)
        return u.clone(), s, v.clone()
    if a.is_complex() and tracing.current() is not None:  # XLA expands only real ones.
        return _complex_svd(a, full_matrices, compute_uv)
    if not compute_uv:
        (s,) = composite("svdvals", _values_alone, a)
        return a.new_zeros(0), s, a.new_zeros(0)
    u, s, vh = composite("svd", _svd, a, full=full_matrices)
    return u, s, vh


def _complex_svd(a: Tensor, full: bool, compute_uv: bool) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = a.shape
    k = min(m, n)
    values = array_type(a.dtype.to_real(), (*batch, k))
    if not compute_uv:
        return a.new_zeros(0), lapack("svdvals", a, result=values), a.new_zeros(0)
    rows, columns = (m, n) if full else (k, k)
    u, vh = (array_type(a.dtype, (*batch, *s)) for s in ((m, rows), (columns, n)))
    return lapack("svd", a, result=[u, values, vh])


@kernel("allclose")
@batched("allclose")
def allclose(
    x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    # torch's backward formula for the complex SVD checks whether the loss depends on the phases of
    # the vectors, and raises if it does. A program can't.
    if tracing.current() is not None and torch._C._current_graph_task_id() >= 0:
        return True
    return bool(torch.isclose(x, y, rtol, atol, equal_nan).all())


def _values_alone(a: Tensor) -> tuple[Tensor]:
    return (_svd(a, False)[1],)


def _svd(a: Tensor, full: bool) -> tuple[Tensor, Tensor, Tensor]:
    """From the eigenvectors ``[u, v]`` and ``[u, -v]`` of ``[[0, a], [a^H, 0]]``.

    Where singular values are zero up to rounding, u and v are any; QR makes them orthogonal.
    """
    m, n = a.shape[-2:]
    k = min(m, n)
    above = torch.cat([a.new_zeros((*a.shape[:-1], m)), a], -1)
    below = torch.cat([a.mH, a.new_zeros((*a.shape[:-2], n, n))], -1)
    values, vectors = torch.linalg.eigh(torch.cat([above, below], -2))
    s = values[..., m + n - k :].flip(-1).clamp(min=0)
    vectors = vectors[..., m + n - k :].flip(-1)
    u, v = (_orthogonal(x, full) for x in (vectors[..., :m, :], vectors[..., m:, :]))
    return u, s, v.mH


def _orthogonal(x: Tensor, full: bool) -> Tensor:
    """Orthogonal columns near those of x, and more of them to the full number."""
    q, r = qr(x, "complete" if full else "reduced")
    sign = torch.where(r.diagonal(0, -2, -1) < 0, -1, 1).to(x.dtype)
    sign = torch.nn.functional.pad(sign, (0, q.shape[-1] - sign.shape[-1]), value=1)
    return q * sign.unsqueeze(-2)


@kernel("svd")
def old_svd(a: Tensor, some: bool = True, compute_uv: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    *batch, m, n = a.shape
    u, s, v = svd(a, not some)
    if compute_uv:
        return u, s, v.mH
    return a.new_zeros((*batch, m, m)), s, a.new_zeros((*batch, n, n))
