"""Both modes at unsymmetric tangents, padding, ties and zeros, where their rules used to differ."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor
D = torch.float64

FACTOR = torch.tensor([[2.0, 0.7], [-7.0, 3.0]], dtype=D)
MATRIX = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, -0.2], [0.5, -0.2, 2.0]], dtype=D)
WEIGHTS = torch.tensor([[0.3, -1.1, 0.6], [0.9, 0.2, -0.4], [-0.8, 1.3, 0.5]], dtype=D)
B = torch.tensor([[1.0, 2.0], [-1.0, 3.0]], dtype=D)
TABLE = torch.arange(8.0, dtype=D).reshape(4, 2)
ROWS = torch.tensor([1, 1, 3, 0, 1])
PLACES = torch.tensor([0, 1, 1, 2, 2])
X = torch.tensor([1.0, 2.0, 3.0, 5.0], dtype=D)
SRC = torch.tensor([1.0, 3.0, 3.0, 2.0, 0.0], dtype=D)


def _hermitian(a: Tensor) -> Tensor:
    return (a + a.mT) / 2


def _embedded(**options: Any) -> Callable[[Tensor], Tensor]:
    scales = torch.tensor([1.0, 10.0, 100.0, 1000.0, 10000.0], dtype=D)
    return lambda w: (F.embedding(ROWS, w, **options).sum(1) * scales).sum()


def _reduced(reduce: str, by: str) -> Callable[[Tensor], Tensor]:
    scales = torch.tensor([1.0, 10.0, 100.0, 1000.0], dtype=D)

    def f(v: Tensor) -> Tensor:
        x, src = (v, SRC) if by == "x" else (X, v)
        return (x.scatter_reduce(0, PLACES, src, reduce, include_self=False) * scales).sum()

    def g(v: Tensor) -> Tensor:
        x, src = (v, SRC) if by == "x" else (X, v)
        return (x.index_reduce(0, PLACES, src, reduce, include_self=False) * scales).sum()

    return lambda v: f(v) + 7 * g(v)


def _unpooled(v: Tensor) -> Tensor:
    return (F.max_unpool1d(v, torch.tensor([[0, 2, 5]]), [2]) * torch.arange(6.0, dtype=D)).sum()


def differences(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The gradient, by finite differences in eager torch."""
    step, flat = 1e-6, x.reshape(-1)
    units = torch.eye(flat.numel(), dtype=D) * step
    moved = [(f((flat + u).reshape(x.shape)) - f((flat - u).reshape(x.shape))) for u in units]
    return torch.stack(moved).reshape(x.shape) / (2 * step)


SMOOTH: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "cholesky_solve": (lambda a: torch.cholesky_solve(B, a.tril()).sin().sum(), FACTOR),
    "cholesky_solve, upper": (
        lambda a: torch.cholesky_solve(B, a.mT.triu(), upper=True).sin().sum(),
        FACTOR,
    ),
    "cholesky_inverse": (lambda a: torch.cholesky_inverse(a.tril()).sin().sum(), FACTOR),
    "cholesky": (lambda a: (torch.linalg.cholesky(_hermitian(a)) * WEIGHTS).sum(), MATRIX),
    "eigh": (
        lambda a: (torch.linalg.eigh(_hermitian(a))[1].square() * WEIGHTS).sum(),
        MATRIX,
    ),
    "max_unpool1d": (_unpooled, torch.tensor([[4.0, 2.0, 7.0]], dtype=D)),
    "max_unpool1d of a batch": (
        lambda v: _unpooled(v[0]),
        torch.tensor([[[4.0, 2.0, 7.0]]], dtype=D),
    ),
}
"""Functions as a user writes them, with finite differences in all directions."""

BARE: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky_solve": lambda a: torch.cholesky_solve(B, a).sin().sum(),
    "cholesky_solve, upper": lambda a: torch.cholesky_solve(B, a.mT, upper=True).sin().sum(),
    "cholesky_inverse": lambda a: torch.cholesky_inverse(a).sin().sum(),
    "cholesky": lambda a: (torch.linalg.cholesky(a) * WEIGHTS).sum(),
    "eigh": lambda a: (torch.linalg.eigh(a)[1].square() * WEIGHTS).sum(),
}
"""The same without the projection to what the function reads, which its derivative contains."""

CHOSEN: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, list[Any]]] = {
    "embedding, padding": (
        _embedded(padding_idx=1),
        TABLE,
        [[1000] * 2, [0] * 2, [0] * 2, [100] * 2],
    ),
    "embedding, by frequency": (
        _embedded(scale_grad_by_freq=True),
        TABLE,
        [[1000] * 2, [10011 / 3] * 2, [0] * 2, [100] * 2],
    ),
    "amax of src": (_reduced("amax", "src"), SRC, [8, 40, 40, 800, 0]),
    "amax of x": (_reduced("amax", "x"), X, [0, 0, 0, 8000]),
    "amin of src": (_reduced("amin", "src"), SRC, [8, 40, 40, 0, 800]),
    "amin of x": (_reduced("amin", "x"), X, [0, 0, 0, 8000]),
    "prelu at zero": (
        lambda x: F.prelu(x, torch.tensor([0.25], dtype=D, device=x.device)).sum(),
        torch.tensor([0.0, 1.0, -1.0], dtype=D),
        [0.25, 1.0, 0.25],
    ),
}
"""Where the derivative is a choice: that of torch's reverse mode, but for ties with what is left
out (`include_self=False`)."""


@functools.cache
def results() -> dict[str, Any]:
    """Both modes of all cases, in one program."""
    cases = {f"smooth {k}": v for k, v in SMOOTH.items()}
    cases |= {f"bare {k}": (f, SMOOTH[k][1]) for k, f in BARE.items()}
    cases |= {f"chosen {k}": v[:2] for k, v in CHOSEN.items()}

    def program(points: dict[str, Tensor]) -> dict[str, Any]:
        return {k: (xf.jacfwd(f)(points[k]), xf.grad(f)(points[k])) for k, (f, _) in cases.items()}

    return xf.device_get(xf.jit(program)({k: x for k, (_, x) in cases.items()}))


@pytest.mark.parametrize("name", SMOOTH)
def test_both_modes_match_finite_differences(name: str) -> None:
    want = differences(*SMOOTH[name])
    for kind in ("smooth", "bare") if name in BARE else ("smooth",):
        for found in results()[f"{kind} {name}"]:
            torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CHOSEN)
def test_both_modes_where_the_derivative_is_a_choice(name: str) -> None:
    want = torch.tensor(CHOSEN[name][2], dtype=D)
    for found in results()[f"chosen {name}"]:
        torch.testing.assert_close(found, want)


def test_embedding_by_frequency_derivative_of_gradient() -> None:
    """The gradient is linear in the cotangent; torch's rule for its derivative is without scale."""

    def pulled(ct: Tensor) -> Tensor:
        f = lambda w: F.embedding(ROWS, w, scale_grad_by_freq=True)  # noqa: E731
        return xf.vjp(f, TABLE)[1](ct)[0].sum()

    found = xf.grad(pulled)(torch.ones(5, 2, dtype=D)).cpu()
    assert found[:, 0].tolist() == pytest.approx([1 / 3, 1 / 3, 1, 1, 1 / 3])
