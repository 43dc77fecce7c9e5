"""Second derivatives of products where a factor is zero, in all four orders."""

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
