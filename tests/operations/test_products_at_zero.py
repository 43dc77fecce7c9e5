"""Derivatives of products where factors are zero: gradients, and second ones in all orders."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf

D = torch.float64


def _pushed(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: xf.jvp(f, (t,), (torch.ones_like(t),))[1]


ORDERS: dict[str, Callable[..., Callable[..., torch.Tensor]]] = {
    "jvp of jvp": lambda f: _pushed(_pushed(f)),
    "grad of jvp": lambda f: xf.grad(_pushed(f)),
    "jvp of grad": lambda f: _pushed(xf.grad(f)),
    "grad of grad": lambda f: xf.grad(xf.grad(f)),
}


def _factors(t: torch.Tensor) -> torch.Tensor:
    return torch.stack((t, t + 1, 2 - t, t - 1, 2 * t + 1, t + 3)).reshape(2, 3)


def _cumprod(t: torch.Tensor) -> torch.Tensor:
    return (torch.cumprod(_factors(t), -1) * torch.arange(1, 7, dtype=D).reshape(2, 3)).sum()


def _prod(t: torch.Tensor) -> torch.Tensor:
    return (torch.prod(_factors(t), 1) * torch.tensor([3.0, 6.0], dtype=D)).sum()


def _exact(f: Callable[[torch.Tensor], torch.Tensor], at: float) -> float:
    """The second derivative of a cubic, by differences that have no error but of rounding."""
    t, step = torch.tensor(at, dtype=D), 2**-6
    return ((f(t + step) - 2 * f(t) + f(t - step)) / step**2).item()


@pytest.mark.parametrize("order", ORDERS)
def test_second_derivative_of_products_with_zero_factor(order: str) -> None:
    for f in (_cumprod, _prod):
        for at in (1.0, 0.0):
            found = ORDERS[order](f)(torch.tensor(at, dtype=D)).item()
            assert found == pytest.approx(_exact(f, at)), (f.__name__, at)


X = torch.tensor([[2, 3, -1, 0.5], [0, 2, 3, 4], [1, 0, 3, 0], [2, 0, 5, 7], [0, 0, 1, 2]], dtype=D)
WEIGHTS = torch.linspace(-1, 2, 20, dtype=D).reshape(5, 4)
PLACES = torch.tensor([[0, 1, 1, 0], [2, 1, 0, 2], [2, 2, 2, 1], [0, 1, 0, 1], [1, 1, 2, 2]])
BASE = torch.tensor([[1.5, 0, 2], [1, 2, 3], [4, 5, 6], [0, 1, 1], [2, 2, 2]], dtype=D)


def gradients(f: Callable[..., torch.Tensor], *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """In eager torch."""
    leaves = [x.clone().requires_grad_() for x in args]
    return torch.autograd.grad(f(*leaves), leaves)


@pytest.mark.parametrize("dim", [0, 1])
def test_gradient_of_cumprod_with_zero_factors(dim: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.cumprod(dim) * WEIGHTS).sum()

    (want,) = gradients(f, X)
    torch.testing.assert_close(xf.jit(xf.grad(f))(X).cpu(), want)
    pulled = xf.jit(lambda x, ct: xf.vjp(lambda x: x.cumprod(dim), x)[1](ct)[0])(X, WEIGHTS)
    torch.testing.assert_close(pulled.cpu(), want)
    if dim:
        rows = xf.vmap(xf.grad(lambda row, w: (row.cumprod(0) * w).sum()))
        torch.testing.assert_close(xf.jit(rows)(X, WEIGHTS).cpu(), want)


@pytest.mark.parametrize("include_self", [True, False])
def test_gradient_of_scattered_product_with_zero_factors(include_self: bool) -> None:
    def row(base: torch.Tensor, src: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        found = base.scatter_reduce(-1, places, src, "prod", include_self=include_self)
        return (found * torch.tensor([1.0, -2.0, 3.0])).sum()

    want = gradients(lambda base, src: row(base, src, PLACES), BASE, X)
    both = xf.grad(row, argnums=(0, 1))
    for f in (xf.jit(both), xf.jit(xf.vmap(both))):
        torch.testing.assert_close(xf.device_get(f(BASE, X, PLACES)), want)


def test_plain_autograd_of_gradients_of_products_with_zero_factors() -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        scattered = BASE.scatter_reduce(1, PLACES, x, "prod")
        return (x.cumprod(1) * WEIGHTS).sum() + scattered.square().sum()

    def plain(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(product(x), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    second = xf.grad(lambda x: xf.grad(product)(x).square().sum())
    found = xf.device_get(xf.jit(lambda x: (plain(x), second(x)))(X))
    torch.testing.assert_close(*found)
