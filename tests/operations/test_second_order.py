"""Second derivatives in all four orders of the two modes, against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor

A = torch.tensor([[3.2, 0.4, -0.7], [0.3, 2.6, 0.9], [-0.5, 0.8, 4.1]], dtype=torch.float64)
V = torch.tensor([[0.3, -1.1, 0.6], [0.9, 0.2, -0.4], [-0.8, 1.3, 0.5]], dtype=torch.float64)
B = torch.tensor([0.7, -1.2, 0.4], dtype=torch.float64)
SCALES = torch.tensor([0.6, 1.1, 0.3], dtype=torch.float64)


def _factor(a: Tensor) -> Tensor:
    return torch.linalg.cholesky(a @ a.mT)


def _complex(a: Tensor) -> Tensor:
    return a + 1j * a.T


def _running() -> tuple[Tensor, Tensor]:
    return torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)


NUMBERS = (True, 0.1, 1e-5)
NORMS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "native_batch_norm": lambda a: torch.native_batch_norm(a, V[0], B, *_running(), *NUMBERS),
    "native_batch_norm alone": lambda a: torch.native_batch_norm(a, V[0], B, None, None, *NUMBERS),
    "legit batch norm": lambda a: torch.ops.aten._native_batch_norm_legit(
        a, V[0], B, *_running(), *NUMBERS
    ),
    "legit batch norm alone": lambda a: torch.ops.aten._native_batch_norm_legit(
        a, V[0], B, *NUMBERS
    ),
    "updating batch norm": lambda a: torch.ops.aten._batch_norm_with_update(
        a, V[0], B, *_running(), *NUMBERS[1:]
    ),
    "native_layer_norm": lambda a: torch.native_layer_norm(a, (3,), V[0], B, 1e-5),
}

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "solve": lambda a: torch.linalg.solve(a, B).sin().sum(),
    "solve from the right": lambda a: torch.linalg.solve(a, B.expand(2, 3), left=False).sum(),
    "solve_ex, complex": lambda a: torch.linalg.solve_ex(_complex(a), B + 0j).result.abs().sum(),
    "tensorsolve": lambda a: torch.linalg.tensorsolve(a, B).sum(),
    "det": torch.linalg.det,
    "det, complex": lambda a: torch.linalg.det(_complex(a)).abs(),
    "slogdet": lambda a: torch.linalg.slogdet(a)[1],
    "logdet": lambda a: torch.logdet(a @ a.mT),
    "inv": lambda a: torch.linalg.inv(a).sum(),
    "lu_solve": lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), B[:, None]).sum(),
    "cholesky_inverse": lambda a: torch.cholesky_inverse(_factor(a)).sum(),
    "cholesky_inverse, upper": lambda a: torch.cholesky_inverse(_factor(a).mT, upper=True).sum(),
    "cholesky_solve": lambda a: torch.cholesky_solve(B[:, None], _factor(a)).sum(),
    "householder_product": lambda a: torch.linalg.householder_product(a / 4, SCALES).sin().sum(),
    "eigh": lambda a: torch.linalg.eigh(a @ a.mT)[1].sin().sum(),
    "eigh of pairs": lambda a: torch.linalg.eigh(torch.stack([a @ a.mT, a.mT @ a]))[1].sum(),
    "eig": lambda a: (torch.linalg.eig(a)[1].abs() * V).sum(),
    "layer_norm": lambda a: F.layer_norm(a, (3,), V[0], B).sin().sum(),
    "group_norm": lambda a: F.group_norm(a[None], 3, V[0], B).sin().sum(),
    "batch_norm": lambda a: F.batch_norm(a, None, None, V[0], B, training=True).sin().sum(),
    "eigvalsh": lambda a: torch.linalg.eigvalsh(a @ a.mT).sin().sum(),
    "svdvals": lambda a: torch.linalg.svdvals(a).sin().sum(),
    "matrix_exp": lambda a: torch.linalg.matrix_exp(a / 4).sum(),
    **{name: lambda a, norm=norm: norm(a)[0].sin().sum() for name, norm in NORMS.items()},
}

WAYS: dict[str, Callable[[Callable[[Tensor], Tensor]], Any]] = {
    "jvp(jvp)": lambda f: xf.jvp(lambda a: xf.jvp(f, (a,), (V,))[1], (A,), (V,))[1],
    "jvp(grad)": lambda f: xf.jvp(lambda a: (xf.grad(f)(a) * V).sum(), (A,), (V,))[1],
    "grad(jvp)": lambda f: (xf.grad(lambda a: xf.jvp(f, (a,), (V,))[1])(A) * V).sum(),
    "grad(grad)": lambda f: (xf.grad(lambda a: (xf.grad(f)(a) * V).sum())(A) * V).sum(),
    "jit(jvp(linearize))": lambda f: xf.jit(
        lambda a: xf.jvp(lambda b: xf.linearize(f, b)[1](V), (a,), (V,))[1]
    )(A),
}


@pytest.mark.sample(18, seed=0)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_derivative_along_a_direction(name: str, way: str) -> None:
    f, step = FUNCTIONS[name], 1e-3
    values = [f(A + k * step * V).item() for k in (-2, -1, 0, 1, 2)]
    weights = (-1 / 12, 4 / 3, -5 / 2, 4 / 3, -1 / 12)
    want = sum(w * v for w, v in zip(weights, values, strict=True)) / step**2
    assert WAYS[way](f).item() == pytest.approx(want, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NORMS)
def test_the_statistics_that_a_norm_returns_are_constants(name: str, way: str) -> None:
    """As for torch's own rules, nested or not."""

    def f(a: Tensor) -> Tensor:
        _, mean, scale, *_ = NORMS[name](a)
        return mean.sin().sum() + scale.sin().sum()

    assert torch.func.jvp(f, (A,), (V,))[1] == 0
    assert not torch.func.grad(f)(A).any()
    assert WAYS[way](f) == 0


def test_eigh_complex_second_derivative_is_refused() -> None:
    """Eager torch raises an internal error; once it does not, the refusal goes."""
    scale = torch.arange(9.0).reshape(3, 3)

    def loss(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x, x.flip(0))
        values, vectors = torch.linalg.eigh(z + z.mH)
        return (vectors.abs().square() * scale.to(x.device)).sum() + values.pow(3).sum()

    x = torch.eye(3) + scale / 7
    with pytest.raises(RuntimeError, match="input_is_complex == grad_is_complex"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x).square().sum())(x)
    with pytest.raises(xf.errors.UnsupportedOpError, match="complex one of what is real"):
        xf.grad(lambda x: xf.grad(loss)(x).square().sum())(x)


@pytest.mark.parametrize(("rows", "columns", "k"), [(5, 3, 3), (6, 4, 2), (4, 4, 4), (3, 2, 0)])
def test_householder_product_gradient(rows: int, columns: int, k: int) -> None:
    """Also where a scale is zero, and where there are fewer scales than columns."""
    torch.manual_seed(0)
    a = torch.randn(2, rows, columns, dtype=torch.float64)
    scales = torch.rand(2, k, dtype=torch.float64)
    scales[0, :1] = 0

    def f(a: Tensor, scales: Tensor) -> Tensor:
        return torch.linalg.householder_product(a, scales).sin().sum()

    found = xf.device_get(xf.jit(xf.grad(f, argnums=(0, 1)))(a, scales))
    torch.testing.assert_close(found, torch.func.grad(f, argnums=(0, 1))(a, scales))


@pytest.mark.parametrize("of", ["householder_product", "ormqr"])
def test_householder_gradient_has_one_size(of: str) -> None:
    """The program of its gradient does not grow with the number of columns."""

    def f(a: Tensor) -> Tensor:
        if of == "ormqr":
            return torch.ormqr(a, a[0], a).sum()
        return torch.linalg.householder_product(a, a[0]).sum()

    sizes = {xf.jit(xf.grad(f)).lower(torch.ones(n, n)).as_text().count(" = ") for n in (4, 9)}
    assert len(sizes) == 1


SOLVES: dict[str, Callable[[Tensor], Tensor]] = {
    "solve": lambda a: torch.linalg.solve(a, a[0]),
    "solve of a transpose": lambda a: torch.linalg.solve(a.mT, a[:, :2]),
    "solve from the right": lambda a: torch.linalg.solve(a, a[:2], left=False),
    "det": lambda a: torch.linalg.det(a.mT),
    "slogdet": lambda a: torch.linalg.slogdet(a)[1],
}


@pytest.mark.parametrize("of", [torch.clone, _complex])
@pytest.mark.parametrize("name", SOLVES)
def test_solve_and_det_gradients_in_every_release(
    name: str, of: Callable[[Tensor], Tensor]
) -> None:
    """Releases of torch differ in the factors that their derivatives take."""

    def loss(a: Tensor) -> Tensor:
        return SOLVES[name](of(a)).abs().sin().sum()

    want = torch.func.grad(loss)(A)
    torch.testing.assert_close(xf.device_get(xf.grad(loss)(A)), want)
    torch.testing.assert_close(xf.device_get(xf.vmap(xf.grad(loss))(A[None]))[0], want)


@pytest.mark.parametrize("p", [1, 3])
def test_hessians_of_mvlgamma_in_vmap(p: int) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.mvlgamma(x, p)

    x = torch.tensor([4.0, 5.0, 6.5], dtype=torch.float64)
    torch.testing.assert_close(xf.device_get(xf.vmap(f)(x)), f(x))
    want = torch.func.vmap(torch.func.hessian(f))(x)
    torch.testing.assert_close(xf.device_get(xf.vmap(xf.hessian(f))(x)), want)
    torch.testing.assert_close(xf.device_get(xf.vmap(xf.grad(xf.grad(f)))(x)), want)
