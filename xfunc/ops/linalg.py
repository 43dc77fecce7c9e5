"""Linear systems, determinants, inverses and functions of matrices."""

from __future__ import annotations

import cmath

import torch

from xfunc.core.torch_versions import factors_transpose
from xfunc.graph.node import Node
from xfunc.ops.emit import composite, instruction, loop
from xfunc.ops.factorisations import eye, first_zero, lu, no_info, order_of
from xfunc.ops.registry import batched, composition, kernel
from xfunc.torchlib.unbatched import covariance

Tensor = torch.Tensor
Factor = int | float | complex


def _solve(a: Node, b: Node, *, left: bool, lower: bool, unit_diagonal: bool) -> Node:
    """The `x` of ``a @ x = b``, or of ``x @ a = b`` if not `left`, for a triangular `a`."""
    return Node("triangular-solve", b.type, (a, b), (left, lower, unit_diagonal))


@kernel("linalg_solve_triangular")
def solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:]).to(a.dtype)
    if not b.numel():
        return b.clone()
    return instruction(_solve, a, b, left=left, lower=not upper, unit_diagonal=unitriangular)


@composition("triangular_solve")
def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    # torch's forward-mode rule takes changes of the triangle that is not read, too.
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    factor, up = (a.mT, not upper) if transpose else (a, upper)
    found = torch.linalg.solve_triangular(factor, b, upper=up, unitriangular=unitriangular)
    return found, a.clone()


@kernel("linalg_lu_solve")
def lu_solve(
    packed: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    if not left:  # x a = b: the adjoint of a' x' = b'
        return lu_solve(packed, pivots, b.mH, adjoint=not adjoint).mH
    n = packed.shape[-1]
    batch = torch.broadcast_shapes(packed.shape[:-2], b.shape[:-2])
    packed, b = packed.expand(*batch, n, n), b.expand(*batch, *b.shape[-2:])
    if not b.numel():
        return b.clone()
    pivots = pivots.expand(*batch, n)
    operation = "getrs_adjoint" if adjoint else "getrs"
    return composite(operation, _getrs, packed.mT, pivots, b.mT, adjoint=adjoint)[0].mT


def _getrs(packed: Tensor, pivots: Tensor, b: Tensor, *, adjoint: bool) -> tuple[Tensor]:
    return (_lu_solve(packed.mT, pivots, b.mT, adjoint=adjoint).mT,)


def _lu_solve(packed: Tensor, pivots: Tensor, b: Tensor, *, adjoint: bool) -> Tensor:
    order = order_of(pivots, packed.shape[-1])
    if not adjoint:
        b = b.gather(-2, order[..., None].expand(b.shape))
        y = solve_triangular(packed, b, upper=False, unitriangular=True)
        return solve_triangular(packed, y, upper=True)
    y = solve_triangular(packed.mH, b, upper=False)
    x = solve_triangular(packed.mH, y, upper=True, unitriangular=True)
    return x.gather(-2, torch.argsort(order, -1)[..., None].expand(b.shape))


def _gesv(a: Tensor, b: Tensor, *, adjoint: bool) -> tuple[Tensor, Tensor, Tensor]:
    packed, pivots = lu(a.mT)
    return _lu_solve(packed, pivots, b.mT, adjoint=adjoint).mT, packed.mT, pivots


def _factor_and_solve(a: Tensor, b: Tensor, *, adjoint: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The solution of ``a x = b``, or of the adjoint system, and the factors of `a`."""
    if not b.numel() or a.shape[:-2] != b.shape[:-2]:
        packed, pivots = lu(a)
        return lu_solve(packed, pivots, b, adjoint=adjoint), packed, pivots
    operation = "gesv_adjoint" if adjoint else "gesv"
    x, packed, pivots = composite(operation, _gesv, a.mT, b.mT, adjoint=adjoint)
    return x.mT, packed.mT, pivots


# NOTE [factors of the transpose]: torch's derivatives of solve, det and slogdet may assume that the
# factors returned are those of the transposed matrix if the matrix is contiguous and real; and
# every XLA array is contiguous.
def _for_derivatives(name: str, a: Tensor) -> Tensor:
    return a.mT if factors_transpose(name, a.dtype) else a


@kernel("_linalg_solve_ex")
def solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if vector else b
    right = not (left or vector)  # x a = b: the adjoint of a' x' = b'
    adjoint = right != factors_transpose("_linalg_solve_ex", a.dtype)
    given = _for_derivatives("_linalg_solve_ex", a)
    found = _factor_and_solve(given, b.mH if right else b, adjoint=adjoint)
    x, packed, pivots = found
    x = x.mH if right else x
    return (x.squeeze(-1) if vector else x), packed, pivots, first_zero(packed)


@kernel("linalg_inv_ex")
def inv_ex(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    if not a.numel():
        return a.clone(), no_info(a)
    identity = eye(a.shape[-1], a).expand(a.shape)
    # Of the transposed matrix: see NOTE [composites of transposed matrices].
    x, packed, _ = _factor_and_solve(a.mT, identity.mT, adjoint=False)
    return x.mT, first_zero(packed)


def sign_of(pivots: Tensor, like: Tensor) -> Tensor:
    """The determinant of the permutation that LAPACK's pivots represent."""
    places = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    odd = (pivots != places).sum(-1) % 2
    return (1 - 2 * odd).to(like.dtype)


@kernel("_linalg_det")
def det(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    packed, pivots = lu(_for_derivatives("_linalg_det", a))
    diagonal = packed.diagonal(0, -2, -1)
    return sign_of(pivots, a) * diagonal.prod(-1), packed, pivots


@kernel("_linalg_slogdet")
def slogdet(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    packed, pivots = lu(_for_derivatives("_linalg_slogdet", a))
    diagonal = packed.diagonal(0, -2, -1)
    sign = sign_of(pivots, a) * torch.sgn(diagonal).prod(-1)
    return sign, diagonal.abs().log().sum(-1), packed, pivots


@kernel("_cholesky_solve_helper")
def cholesky_solve(b: Tensor, factor: Tensor, upper: bool) -> Tensor:
    if upper:
        factor = factor.mH
    y = solve_triangular(factor, b, upper=False)
    return solve_triangular(factor.mH, y, upper=True)


@kernel("cholesky_inverse")
def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    identity = eye(factor.shape[-1], factor).expand(factor.shape)
    return cholesky_solve(identity, factor.triu() if upper else factor.tril(), upper)


@kernel("linalg_lstsq")
def lstsq(
    a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *_, m, n = a.shape
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    y = b.unsqueeze(-1) if vector else b
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    least = torch.finfo(s.dtype).eps * max(m, n) if rcond is None else rcond
    kept = s > least * s.amax(-1, keepdim=True) if s.numel() else s > 0
    inverse = torch.where(kept, 1 / torch.where(kept, s, 1), 0).to(a.dtype)
    x = vh.mH @ (inverse[..., None] * (u.mH @ y))
    rank = kept.sum(-1) if driver != "gels" else torch.zeros(0, device=a.device).long()
    found = s if driver in ("gelsd", "gelss") else s.new_zeros(0)
    rest = (y - a @ x).abs().square().sum(-2) if m > n else s.new_zeros(0)
    return (x.squeeze(-1) if vector else x), rest, rank, found


def _double(k: Tensor, x: Tensor, times: Tensor) -> tuple[Tensor]:
    return (torch.where(k < times, x @ x, x),)


_HALVINGS = 32


@kernel("linalg_matrix_exp")
def matrix_exp(a: Tensor) -> Tensor:
    if not a.numel():
        return a.clone()
    size = a.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)
    times = torch.ceil(torch.log2(size.clamp(min=1e-30) / 3)).clamp(0, _HALVINGS)
    x = a / torch.exp2(times).to(a.dtype)
    identity = eye(a.shape[-1], a).expand(a.shape)
    total = identity
    for k in range(18 if size.dtype.itemsize <= 4 else 28, 0, -1):  # Horner's scheme
        total = identity + x @ total / k
    return loop(_double, _HALVINGS, [total], [times])[0]


composition("cov")(covariance)  # torch's own checks that the weights are positive.


@kernel("trace")
def trace(x: Tensor) -> Tensor:
    if x.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {x.ndim}")
    return x.diagonal().sum()


@batched("addmm")  # torch's rule does not make `alpha` and `beta` integers.
def addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Factor = 1, alpha: Factor = 1) -> Tensor:
    return _plus(x, a @ b, beta, alpha)


@batched("addmv")
def addmv(x: Tensor, a: Tensor, b: Tensor, *, beta: Factor = 1, alpha: Factor = 1) -> Tensor:
    return _plus(x, a @ b, beta, alpha)


@batched("baddbmm")
def baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Factor = 1, alpha: Factor = 1) -> Tensor:
    return _plus(x, a @ b, beta, alpha)


@batched("addbmm")
def addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Factor = 1, alpha: Factor = 1) -> Tensor:
    if not cmath.isfinite(alpha):  # It scales each product separately: inf - inf is NaN.
        return _plus(x, (a @ b * alpha).sum(0), beta, 1)
    return _plus(x, (a @ b).sum(0, dtype=a.dtype), beta, alpha)


def _plus(x: Tensor, product: Tensor, beta: Factor, alpha: Factor) -> Tensor:
    if not (product.is_floating_point() or product.is_complex()):
        beta, alpha = int(beta.real), int(alpha.real)
    product = product if alpha == 1 else product * alpha
    if beta == 0:  # even if `x` has NaN
        return product
    return product + (x if beta == 1 else x * beta)


@kernel("linalg_polar")
def polar(a: Tensor) -> tuple[Tensor, Tensor]:
    m, n = a.shape[-2:]
    if m < n:
        raise RuntimeError(
            "linalg.polar: input must have at least as many rows as columns, but got "
            f"{m} by {n} matrices"
        )
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    return u @ vh, (vh.mH * s.unsqueeze(-2).to(a.dtype)) @ vh


@kernel("linalg_matrix_sqrth")
def matrix_sqrth(a: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(a)
    return (vectors * values.sqrt().unsqueeze(-2).to(a.dtype)) @ vectors.mH
