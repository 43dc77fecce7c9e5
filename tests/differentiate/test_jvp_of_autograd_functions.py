"""Nested forward mode through the `jvp` of a ``torch.autograd.Function``."""

# torch declares the rules of a Function with specific argument lists.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf


class _Square(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * g

    @staticmethod
    def jvp(ctx: Any, dx: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * dx


class _Product(torch.autograd.Function):
    """A function with two results."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * y, x + y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: object) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, y = ctx.saved_tensors
        return g * y + h, g * x + h

    @staticmethod
    def jvp(ctx: Any, dx: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, y = ctx.saved_tensors
        return dx * y + x * dy, dx + dy


square: Any = _Square.apply  # torch declares that it returns None.
multiply: Any = _Product.apply


def _fourth(x: torch.Tensor) -> torch.Tensor:
    return square(square(x))


def _cubic(x: torch.Tensor) -> torch.Tensor:
    product, total = multiply(x, x)
    return product * total / 2


@pytest.mark.parametrize("order", ["ff", "rf", "fr", "fff"])
def test_nested_derivatives_through_jvp_of_autograd_function(order: str) -> None:
    x = torch.tensor(3.0, dtype=torch.float64)
    fourth, cubic = _fourth, _cubic
    for letter in reversed(order):
        transform = xf.jacfwd if letter == "f" else xf.jacrev
        fourth, cubic = transform(fourth), transform(cubic)
    want = (108.0, 18.0) if len(order) == 2 else (72.0, 6.0)
    assert (fourth(x).item(), cubic(x).item()) == pytest.approx(want)


def test_nested_jacfwd_of_vmapped_autograd_function_in_jit() -> None:
    rows = torch.tensor([1.0, 3.0], dtype=torch.float64)
    second = xf.jacfwd(xf.jacfwd(xf.jit(_fourth)))
    torch.testing.assert_close(xf.device_get(xf.vmap(second)(rows)), 12 * rows**2)
