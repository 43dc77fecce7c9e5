"""Second derivatives of norms at zero, where the slope jumps: not finite, or right."""

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
ZERO, Y = torch.zeros(2, dtype=D), torch.tensor([3.0, -4.0], dtype=D)

ORDERS: dict[str, Callable[[Any], Any]] = {
    "fr": xf.hessian,
    "ff": lambda f: xf.jacfwd(xf.jacfwd(f)),
    "rf": lambda f: xf.jacrev(xf.jacfwd(f)),
    "rr": lambda f: xf.jacrev(xf.jacrev(f)),
    "fr of jit": lambda f: xf.hessian(xf.jit(f)),
}

UNKNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda x: torch.linalg.norm(x) ** 2,
    "Tensor.norm": lambda x: x.norm() ** 2,
    "matrix norm": lambda x: torch.linalg.matrix_norm(x[None]) ** 2,
    "norm of order 3": lambda x: torch.linalg.vector_norm(x, 3) ** 2,
    "dist": lambda x: torch.dist(x, x * 0) ** 2,
    "std": lambda x: x.std() ** 2,
    "std_mean": lambda x: torch.std_mean(x)[0] ** 2,
}
"""Their second derivatives at zero are not 0, and unknown to their rules."""

BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {
    "normalize": lambda x: F.normalize(x, dim=0, eps=0.1).sum(),
    "cosine_similarity": lambda x: F.cosine_similarity(x, Y.to(x.device), dim=0, eps=0.1),
    "renorm": lambda x: torch.renorm(x[None], 2, 0, 1.0).sum(),
}
"""These are linear next to zero."""


def _distances(x: Tensor) -> Tensor:
    """Smooth functions of the distances of points, each of which has none from itself."""
    pairs = x[:, None, None] - x[None, :, None]
    return (
        torch.linalg.norm(pairs, dim=-1).pow(3).sum()
        + torch.cdist(x[:, None], x[:, None]).pow(3).sum()
    )


@functools.cache
def results() -> dict[str, Any]:
    """First derivatives and the second ones in all orders, of all functions, in one program."""

    def program(points: dict[str, Tensor]) -> dict[str, Any]:
        found = {}
        for name, f in (UNKNOWN | BOUNDED).items():
            for at, x in points.items():
                found[f"{name} {at}"] = {
                    "first": [xf.grad(f)(x), xf.jacfwd(f)(x)],
                    "second": {order: d(f)(x) for order, d in ORDERS.items()},
                }
        return found

    return xf.device_get(xf.jit(program)({"zero": ZERO, "y": Y}))


@pytest.mark.sample(5, seed=0)
@pytest.mark.parametrize("name", [*UNKNOWN, *BOUNDED])
def test_norm_derivatives_away_from_zero(name: str) -> None:
    f, found = (UNKNOWN | BOUNDED)[name], results()[f"{name} y"]
    for first in found["first"]:
        torch.testing.assert_close(first, torch.func.grad(f)(Y))
    for second in found["second"].values():
        torch.testing.assert_close(second, torch.func.hessian(f)(Y))


@pytest.mark.parametrize("name", UNKNOWN)
def test_norm_second_derivatives_at_zero_are_not_finite(name: str) -> None:
    found = results()[f"{name} zero"]
    for first in found["first"]:
        assert first.tolist() == [0.0, 0.0]
    for order, second in found["second"].items():
        assert not second.diagonal().isfinite().any(), order


@pytest.mark.parametrize("name", BOUNDED)
def test_functions_with_bounded_norm_second_derivatives_at_zero(name: str) -> None:
    found = results()[f"{name} zero"]
    for first in found["first"]:
        torch.testing.assert_close(first, torch.func.grad(BOUNDED[name])(ZERO))
    for second in found["second"].values():
        assert not second.any()


def test_hessian_of_distances_with_points_from_themselves() -> None:
    x = torch.tensor([0.5, 2.0, -1.0], dtype=D)

    def smooth(x: Tensor) -> Tensor:
        return 2 * (x[:, None] - x[None]).abs().pow(3).sum()

    found = xf.hessian(_distances)(x)
    torch.testing.assert_close(found.cpu(), torch.func.hessian(smooth)(x))


@pytest.mark.sample(1, seed=0)
@pytest.mark.parametrize("order", [1.5, 2, 3])
def test_complex_norm_second_derivatives_in_all_orders(order: float) -> None:
    def norm(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(torch.complex(x[:3], x[3:]), order)

    x = torch.tensor([3.0, -4.0, 0.5, 1.0, 2.0, -1.5], dtype=D)
    want = torch.func.hessian(norm)(x)

    def program(x: Tensor) -> dict[str, Tensor]:
        return {name: second(norm)(x) for name, second in ORDERS.items()}

    for name, found in xf.device_get(xf.jit(program)(x)).items():
        torch.testing.assert_close(found, want, msg=name)


def test_complex_norm_second_derivatives_where_one_number_is_zero() -> None:
    def norm(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(torch.complex(x[:2], x[2:]), 3)

    near = torch.func.hessian(norm)(torch.tensor([1e-9, 2.0, 1e-9, -1.0], dtype=D))
    found = xf.hessian(norm)(torch.tensor([0.0, 2.0, 0.0, -1.0], dtype=D))
    torch.testing.assert_close(xf.device_get(found), near)


@pytest.mark.parametrize("dim", [None, 0, (0, 1), (-1, -2), (2,)])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("order", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("is_complex", [False, True])
def test_second_derivatives_of_norms_over_dimensions(
    is_complex: bool, order: float, keepdim: bool, dim: Any
) -> None:
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def loss(x: torch.Tensor) -> torch.Tensor:
        z = torch.complex(x[..., 0], x[..., 1]) if is_complex else x
        sizes = torch.linalg.vector_norm(z, order, dim, keepdim)
        weights = torch.arange(1.0, 1.0 + sizes.shape[-1] if sizes.ndim else 2.0)
        return (sizes * weights).square().sum().sqrt() + sizes.sin().sum()

    want = torch.autograd.functional.hvp(loss, x, x.cos())[1]
    torch.testing.assert_close(xf.jvp(xf.grad(loss), (x,), (x.cos(),))[1].cpu(), want)
