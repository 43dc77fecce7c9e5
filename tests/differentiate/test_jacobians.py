"""Jacobians of unusual functions: complex, partly integers, of no argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.tensor([0.5, 1.5, 2.0], dtype=torch.float64)
JACOBIANS = {"jacfwd": xf.jacfwd, "jacrev": xf.jacrev}


def spiral(x: Tensor) -> Tensor:
    return torch.polar(x, 2 * x) * x.roll(1)


def test_jacrev_of_complex_result_has_imaginary_part() -> None:
    # torch has no Jacobian of it in one call: those of the two parts.
    parts = (lambda x: spiral(x).real, lambda x: spiral(x).imag)
    want = torch.complex(*(torch.autograd.functional.jacobian(p, X) for p in parts))
    for jacobian in (xf.jacrev, xf.jacfwd, lambda f: xf.jit(xf.jacrev(f))):
        torch.testing.assert_close(jacobian(spiral)(X).cpu(), want)


def test_hessian_of_complex_result() -> None:
    parts = (lambda x: spiral(x).sum().real, lambda x: spiral(x).sum().imag)
    hessian_of: Any = torch.autograd.functional.hessian
    want = torch.complex(*(hessian_of(p, X) for p in parts))
    for hessian in (xf.hessian, lambda f: xf.jacrev(xf.jacrev(f))):
        torch.testing.assert_close(hessian(lambda x: spiral(x).sum())(X).cpu(), want)


@pytest.mark.parametrize("name", JACOBIANS)
def test_jacobian_of_mixed_results_names_the_integer(name: str) -> None:
    def mixed(x: Tensor) -> dict[str, Tensor]:
        return {"value": x, "at": x.argmax()}

    with pytest.raises(TypeError, match=r"(?s)mixed returned int64\[\] at output\['at'\].*has_aux"):
        JACOBIANS[name](mixed)(X)


@pytest.mark.parametrize("transform", [xf.jacfwd, xf.jacrev, xf.hessian])
def test_jacobian_with_no_argnums(transform: Callable[..., Any]) -> None:
    assert transform(torch.sin, argnums=())(X) == ()
    found, aux = transform(lambda x: ({"y": x}, x + 1), argnums=(), has_aux=True)(X)
    assert found == {"y": ()}
    assert torch.equal(aux.cpu(), X + 1)


def test_jacfwd_of_empty_tree() -> None:
    assert xf.jacfwd(lambda params, x: x)({}, X) == {}


@pytest.mark.parametrize("transform", [xf.jacfwd, xf.jacrev])
def test_jacobian_by_nothing_and_of_nothing(transform: Callable[..., Any]) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum() * y, x

    x = torch.zeros(0, 2)
    by_x, by_y = zip(*transform(f, argnums=(0, 1))(x, X), strict=True)
    assert [j.shape for j in by_x] == [(*X.shape, 0, 2), (0, 2, 0, 2)]
    assert [j.shape for j in by_y] == [(*X.shape, *X.shape), (0, 2, *X.shape)]
    assert not by_y[0].cpu().any()
    found, aux = transform(lambda x: (x.sum(), x + 1), has_aux=True)(x)
    assert (found.shape, aux.shape) == ((0, 2), (0, 2))


def test_hessian_by_nothing() -> None:
    assert xf.hessian(torch.sum)(torch.zeros(0)).shape == (0, 0)


@pytest.mark.parametrize("transform", [xf.grad, xf.value_and_grad, xf.jacfwd, xf.jacrev])
@pytest.mark.parametrize("argnums", [(0, 0), (1, -1)])
def test_argnums_with_repeated_position(transform: Any, argnums: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="an argument occurs twice"):
        transform(lambda a, b: (a * b).sum(), argnums=argnums)(X, X)
