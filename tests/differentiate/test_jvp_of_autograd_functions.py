"""Nested forward mode through the `jvp` of a ``torch.autograd.Function``."""

# torch declares the rules of a Function with specific argument lists.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable
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


class _Scaled(torch.autograd.Function):
    """``x**3 / 3`` and ``x``, with what `jvp` needs in attributes of the context."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        return x * x * x * scale, x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        ctx.kept = {"x": inputs[0], "scale": inputs[1]}

    @staticmethod
    def jvp(ctx: Any, dx: torch.Tensor, _: None) -> list[torch.Tensor]:
        x, scale = ctx.kept["x"], ctx.kept["scale"]
        return [3 * scale * x * x * dx, dx]


def test_nested_jvps_of_autograd_function_with_attributes_of_its_context() -> None:
    x = torch.tensor(3.0, dtype=torch.float64)
    apply: Any = _Scaled.apply

    def pushed(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: xf.jvp(f, (x,), (torch.ones_like(x),))[1]

    def f(x: torch.Tensor) -> torch.Tensor:
        cube, same = apply(x, 1 / 3)
        return cube * same

    derivative: Callable[[torch.Tensor], torch.Tensor] = f
    for want in (36.0, 36.0, 24.0):
        derivative = pushed(derivative)
        assert derivative(x).item() == pytest.approx(want)


def _by_custom_jvp(x: torch.Tensor) -> torch.Tensor:
    @xf.custom_jvp
    def fourth(x: torch.Tensor) -> torch.Tensor:
        return _fourth(x)

    @fourth.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        (x,), (dx,) = primals, tangents
        return _fourth(x), 4 * square(x) * x * dx

    return fourth(x)


@pytest.mark.parametrize(
    "way", ["jit", "checkpoint", "cond", "scan", "custom_jvp", "linearize", "jit of custom_jvp"]
)
def test_nested_jacfwd_of_autograd_function_within(way: str) -> None:
    """The rules of xfunc's own functions and those of the user meet at each level."""
    yes = torch.tensor(True)
    ways: dict[str, Any] = {
        "jit": xf.jit(_fourth),
        "checkpoint": xf.checkpoint(_fourth),
        "cond": lambda x: xf.cond(yes, _fourth, torch.sin, x),
        "scan": lambda x: xf.scan(lambda c, _: (square(c), None), x, None, length=2)[0],
        "custom_jvp": _by_custom_jvp,
        "linearize": lambda x: xf.linearize(_fourth, x)[0],
        "jit of custom_jvp": xf.jit(_by_custom_jvp),
    }
    f = ways[way]
    for want in (108.0, 108.0, 72.0):
        f = xf.jacfwd(f)
        assert f(torch.tensor(3.0, dtype=torch.float64)).item() == pytest.approx(want)
