"""Factorisations by LAPACK on the CPU, and spelled out where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import xfunc as xf
from xfunc.errors import UnsupportedOpError

Tensor = torch.Tensor
nan, inf = torch.nan, torch.inf
DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [(3, 3), (5, 2), (2, 5), (2, 0, 3, 3), (0, 3), (2, 3, 2, 4)]


def positive(a: Tensor) -> Tensor:
    return a @ a.mH + torch.eye(a.shape[-2], dtype=a.dtype)


def product(factors: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    u, s, vh = factors
    k = s.shape[-1]
    return u[..., :k] * s[..., None, :].to(u.dtype) @ vh[..., :k, :]


def packed_lu(a: Tensor) -> Tensor:
    p, lower, upper = torch.linalg.lu(a)
    return p @ lower @ upper


# Factors are unique up to signs or phases; what they come to is unique.
RECTANGULAR: dict[str, Callable[[Tensor], Any]] = {
    "svd": lambda a: product(torch.linalg.svd(a, full_matrices=False)),
    "full svd": lambda a: product(torch.linalg.svd(a)),
    "svdvals": torch.linalg.svdvals,
    "qr": lambda a: torch.linalg.qr(a)[1].abs(),
    "complete qr": lambda a: (q := torch.linalg.qr(a, mode="complete")[0]) @ q.mH,
    "lu": packed_lu,
    "solve_triangular": lambda a: torch.linalg.solve_triangular(
        positive(a), a.flip(-1), upper=False
    ),
    "right, unit": lambda a: torch.linalg.solve_triangular(
        positive(a).mH, a.mT, upper=True, left=False, unitriangular=True
    ),
    "cholesky": lambda a: torch.linalg.cholesky(positive(a)),
    "upper cholesky": lambda a: torch.linalg.cholesky(positive(a), upper=True),
    "eigh": lambda a: (f := torch.linalg.eigh(positive(a)))[1] * f[0][..., None, :] @ f[1].mH,
    "eigvalsh": lambda a: torch.linalg.eigvalsh(positive(a), UPLO="U"),
    "solve": lambda a: torch.linalg.solve(positive(a), a),
    "solve of vectors": lambda a: torch.linalg.solve(positive(a), a[..., :1]),
    "lu_solve, adjoint": lambda a: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(positive(a) + a @ a.mT), a, adjoint=True
    ),
    "inv": lambda a: torch.linalg.inv(positive(a)),
    "det": lambda a: torch.linalg.det(positive(a)),
    "slogdet": lambda a: torch.linalg.slogdet(positive(a)),
}
ONLY_LAPACK: dict[str, Callable[[Tensor], Any]] = {
    "eig": lambda a: (f := torch.linalg.eig(positive(a)))[1] * f[0][..., None, :] @ f[1].inverse(),
    "eigvals": lambda a: torch.linalg.eigvals(positive(a)).abs().sum(-1),
    "ldl": lambda a: torch.linalg.ldl_solve(*torch.linalg.ldl_factor(positive(a)), a),
    "hermitian ldl": lambda a: torch.linalg.ldl_solve(
        *torch.linalg.ldl_factor(positive(a), hermitian=True), a, hermitian=True
    ),
}


def check(f: Callable[[Tensor], Any], a: Tensor) -> None:
    precision = torch.finfo(a.dtype).eps ** 0.6
    found = xf.device_get(xf.jit(lambda a: f(a))(a))
    assert_close(found, f(a), rtol=precision, atol=precision)


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*RECTANGULAR, *ONLY_LAPACK])
def test_linalg_every_dtype(name: str, dtype: torch.dtype) -> None:
    check({**RECTANGULAR, **ONLY_LAPACK}[name], torch.randn(2, 4, 3, dtype=dtype))


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linalg_every_shape(shape: tuple[int, ...]) -> None:
    a = torch.randn(shape)

    def every(a: Tensor) -> dict[str, Any]:
        return {k: f(a) for k, f in {**RECTANGULAR, **ONLY_LAPACK}.items()}

    check(every, a)


def test_linalg_under_transforms() -> None:
    a, v = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)

    def f(a: Tensor) -> Tensor:
        b = positive(a)
        values = torch.linalg.eigvals(b).real.square().sum() + torch.linalg.svdvals(a).sum()
        return values + torch.linalg.solve(b, v).sum() + torch.linalg.cholesky(b).sum()

    per_example = xf.jit(xf.vmap(xf.vmap(xf.grad(f))))(a)
    wanted = torch.stack([torch.func.grad(f)(x) for x in a.flatten(0, 1)])
    assert_close(per_example.cpu(), wanted.view_as(a))

    def step(c: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        c = torch.linalg.inv(positive(a) + c)
        return c, torch.linalg.det(c)

    def looped(a: Tensor) -> Tensor:
        return xf.scan(step, torch.zeros(4, 4, dtype=a.dtype), a)[1].sum()

    def plain(a: Tensor) -> Tensor:
        c, total = torch.zeros(4, 4, dtype=a.dtype), torch.zeros((), dtype=a.dtype)
        for x in a:
            c, d = step(c, x)
            total = total + d
        return total

    a = a[0].detach()
    assert_close(xf.jit(xf.grad(looped))(a).cpu(), torch.func.grad(plain)(a))
    hessian = xf.jit(xf.jacfwd(xf.grad(looped)))(a)
    assert_close(hessian.cpu(), torch.func.jacfwd(torch.func.grad(plain))(a))


ITERATED: dict[str, Callable[[Tensor], Any]] = {
    "svd": torch.linalg.svd,
    "svdvals": torch.linalg.svdvals,
    "eigh": torch.linalg.eigh,
    "eig": torch.linalg.eig,
    "eigvals": torch.linalg.eigvals,
}


@pytest.mark.parametrize("name", ITERATED)
@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_linalg_non_finite_matrix_gives_nan(name: str, bad: float) -> None:
    f = ITERATED[name]
    a = torch.randn(3, 4, 4)
    a = a + a.mT
    b = a.clone()
    b[1, 2, 1] = b[1, 1, 2] = bad
    found, right = xf.device_get(xf.jit(f)(b)), f(a)
    pairs = [(found, right)] if isinstance(right, Tensor) else zip(found, right, strict=True)
    for x, y in pairs:
        assert x[1].isnan().all()
        assert_close(x[[0, 2]], y[[0, 2]])


def test_linalg_singular_or_indefinite_matrix() -> None:
    a = torch.eye(4).repeat(3, 1, 1)
    a[1, 2, 2] = -1
    a[2, 0, 0] = nan
    factor, info = xf.device_get(xf.jit(torch.linalg.cholesky_ex)(a))
    assert info.tolist() == [0, 3, 1]
    assert_close(factor[0], torch.eye(4))
    assert factor[1:].isnan().any(-1).any(-1).all()
    singular = xf.device_get(xf.jit(torch.linalg.inv)(torch.zeros(3, 3)))
    assert not singular.isfinite().any()
    unknown = xf.device_get(xf.jit(torch.linalg.solve)(torch.full((3, 3), nan), torch.ones(3)))
    assert unknown.isnan().all()
    infinite = torch.tensor([[inf, 0.0], [0.0, 2.0]])
    assert xf.jit(torch.linalg.det)(infinite).item() == inf


ELSEWHERE: dict[str, Callable[[Any], str]] = {
    "text": lambda lowered: lowered.as_text(),
    "stablehlo": lambda lowered: lowered.as_text("stablehlo"),
    "tpu": lambda lowered: lowered.compile(target="tpu:v6e:2x2").as_text(),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_linalg_lowered_for_elsewhere_is_portable(name: str) -> None:
    def f(a: Tensor) -> Tensor:
        b = torch.linalg.svd(a)[1].sum() + torch.linalg.eigh(a)[0] + torch.linalg.qr(a)[1]
        return torch.linalg.solve(torch.linalg.cholesky(a), b)

    text = ELSEWHERE[name](xf.jit(f).lower(torch.eye(4)))
    assert "host_call" not in text
    assert "while" in text


@pytest.mark.parametrize("name", ["stablehlo", "tpu"])
def test_linalg_eig_for_elsewhere_is_refused(name: str) -> None:
    lowered = xf.jit(torch.linalg.eig).lower(torch.eye(3))
    with pytest.raises(UnsupportedOpError, match=r"linalg_eig needs LAPACK \(eig\), which is not"):
        ELSEWHERE[name](lowered)


def test_export_svdvals_runs_by_lapack() -> None:
    a = torch.randn(96, 96)
    exported = xf.export.deserialize(xf.export.serialize(xf.jit(torch.linalg.svdvals).lower(a)))
    assert_close(exported(a).cpu(), torch.linalg.svdvals(a), rtol=1e-3, atol=1e-3)


def invariant(z: Tensor) -> Tensor:
    """Of the singular vectors of a complex matrix, what their phases do not change."""
    u, s, vh = torch.linalg.svd(torch.view_as_complex(z), full_matrices=False)
    parts = torch.view_as_real((u * s.sqrt()) @ vh), torch.view_as_real(u[:, :1] @ u[:, :1].mH)
    return parts[0].sin().sum() + (parts[1] * torch.arange(18.0).reshape(3, 3, 2)).sum()


def test_svd_gradients_of_complex_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    z, w = torch.randn(2, 3, 2, 2, dtype=torch.float64, generator=generator)
    step = 1e-6 * w
    slope = (invariant(z + step) - invariant(z - step)) / 2e-6
    assert_close((xf.grad(invariant)(z).cpu() * w).sum(), slope, rtol=1e-6, atol=1e-6)
    grad = torch.func.grad(invariant)
    change = (grad(z + step) - grad(z - step)) / 2e-6
    for second in (
        xf.grad(lambda z: (xf.grad(invariant)(z) * w).sum())(z),
        xf.jit(lambda z: xf.jvp(xf.grad(invariant), (z,), (w,))[1])(z),
        xf.grad(lambda z: xf.jvp(invariant, (z,), (w,))[1])(z),
        xf.vmap(lambda w: xf.jvp(xf.grad(invariant), (z,), (w,))[1])(w[None])[0],
    ):
        assert_close(second.cpu(), change, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("close", [torch.ops.aten.allclose, torch.ops.aten.allclose.default])
def test_allclose_of_traced_values_is_refused(close: Any) -> None:
    """torch's backward formula of the complex svd asks, and is told that they are."""
    with pytest.raises(UnsupportedOpError, match="allclose"):
        xf.jit(lambda x: x if close(x, x + 1) else x * 2)(torch.ones(2))
    x = xf.jit(lambda x: x + 1)(torch.ones(2))
    assert close(x, x)
    assert not close(x, x + 1)


MATRICES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cholesky": lambda a, b: torch.linalg.cholesky(a),
    "inv": lambda a, b: torch.linalg.inv(a),
    "det": lambda a, b: torch.linalg.det(a),
    "slogdet": lambda a, b: torch.linalg.slogdet(a)[1],
    "lu": lambda a, b: torch.linalg.lu(a)[2],
    "solve": torch.linalg.solve,
    "lu_solve": lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
    "solve_triangular": lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
}


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_linalg_empty_matrices(name: str, dtype: torch.dtype) -> None:
    f = MATRICES[name]
    for batch, n, columns in (((0,), 3, 2), ((2,), 0, 2), ((), 3, 0), ((), 0, 0)):
        a = torch.eye(n, dtype=dtype).expand(*batch, n, n).contiguous()
        b = torch.ones(*batch, n, columns, dtype=dtype)
        assert_close(xf.device_get(xf.jit(f)(a, b)), f(a, b))
        if batch and batch[0]:
            assert_close(xf.device_get(xf.vmap(f)(a, b)), f(a, b))
        if not dtype.is_complex:
            want = torch.func.grad(lambda a, b: f(a, b).sum(), argnums=(0, 1))(a, b)
            got = xf.jit(xf.grad(lambda a, b: f(a, b).sum(), argnums=(0, 1)))(a, b)
            assert_close(xf.device_get(got), want)


def test_lu_solve_invalid_pivots_are_refused() -> None:
    def f(packed: Tensor, pivots: Tensor) -> Tensor:
        return torch.linalg.lu_solve(packed, pivots, torch.ones(3, 1))

    for pivots in ([0, 2, 3], [1, 2, 4]):
        with pytest.raises(RuntimeError, match="pivots given to lu_solve must lie between 1 and 3"):
            xf.jit(f)(torch.eye(3), torch.tensor(pivots, dtype=torch.int32))
