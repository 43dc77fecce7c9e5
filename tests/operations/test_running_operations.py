"""Operations that give all partial results: along long dimensions, in programs of one size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
RUNNING: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 0),
    "cummax": lambda x: tuple(torch.cummax(x, 0)),
    "cummin": lambda x: tuple(torch.cummin(x, 0)),
    "cumprod of integers": lambda x: torch.cumprod(x.nan_to_num().round().long() * 2 + 1, 0),
}


@pytest.mark.parametrize("name", RUNNING)
def test_running_operation_along_long_dimension(name: str) -> None:
    f = RUNNING[name]
    for n in (17, 37, 100):
        x = torch.randn(n, 3, dtype=torch.float64)
        x[n // 2, 0], x[5], x[2, 1] = torch.nan, x[3], -torch.inf
        found = xf.device_get(xf.jit(f)(x))
        torch.testing.assert_close(found, f(x), equal_nan=True)


@pytest.mark.parametrize("name", RUNNING)
def test_program_of_running_operation_does_not_grow_with_length(name: str) -> None:
    def size(n: int) -> int:
        return len(xf.jit(RUNNING[name]).lower(torch.zeros(n)).as_text("hlo").splitlines())

    assert size(20_003) == size(1_003) < 300


PRODUCTS: dict[str, Callable[[Tensor], Tensor]] = {
    "cumprod": lambda x: x.cumprod(0),
    "scatter_reduce": lambda x: x[:7].scatter_reduce(0, x.detach().long().clamp(0, 6), x, "prod"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_program_of_gradient_of_products_does_not_grow_with_length(name: str) -> None:
    slope = xf.grad(lambda x: PRODUCTS[name](x).sum())

    def size(n: int) -> int:
        return len(xf.jit(slope).lower(torch.zeros(n)).as_text("hlo").splitlines())

    assert size(2_003) == size(103) < 300
