"""The smallest forms of what the random programs have found to be wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.linspace(0.1, 0.9, 4)
S = torch.tensor(0.7)


@pytest.mark.parametrize(
    ("fun", "slope"),
    [
        (lambda x: 0.3 * x, 0.3),
        (lambda x: x + 2, 1.0),
        (lambda x: 0.5 - x, -1.0),
        (lambda x: x / 4, 0.25),
        (lambda x: 1.4 / x, -1.4 / 0.49),
        (lambda x: torch.lerp(x, x * 2.0, 0.5), 1.5),
    ],
    ids=["mul", "add", "rsub", "div", "rdiv", "lerp"],
)
def test_a_number_beside_a_0d_tensor_leaves_the_tangent_its_dtype(
    fun: Callable[[Tensor], Tensor], slope: float
) -> None:
    """torch.func.jvp alone makes these tangents float64."""
    _, dot = xf.jvp(fun, (S,), (torch.tensor(1.0),))
    torch.testing.assert_close(xf.device_get(dot), torch.tensor(slope))


def test_a_scan_over_scalars_has_a_jvp() -> None:
    def loop(x: Tensor) -> Tensor:
        return xf.scan(lambda c, _: (torch.sin(0.5 * c) + 0.1, None), x, None, 3)[0]

    def plain(x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.sin(0.5 * x) + 0.1
        return x

    got = xf.device_get(xf.jvp(loop, (S,), (torch.tensor(1.0),)))
    wide = S.double()
    want = torch.func.jvp(plain, (wide,), (torch.ones_like(wide),))
    torch.testing.assert_close(got, tuple(t.float() for t in want))


@pytest.mark.parametrize("transform", [xf.jacfwd, xf.jacrev])
def test_jacobian_of_a_scalar_by_a_scalar(transform: Callable[..., Callable[..., Tensor]]) -> None:
    torch.testing.assert_close(xf.device_get(transform(torch.sin)(S)), torch.cos(S))


@pytest.mark.parametrize("argument", [S, X])
@pytest.mark.parametrize("result", [S, X])
@pytest.mark.parametrize("transform", [xf.jacfwd, xf.jacrev])
def test_jacobian_of_a_constant(
    transform: Callable[..., Callable[..., Tensor]], result: Tensor, argument: Tensor
) -> None:
    """torch.func.vmap with out_dims=-1 reads beyond the shape of an output that is not batched."""
    got = xf.device_get(transform(lambda _: result.sin())(argument))
    torch.testing.assert_close(got, torch.zeros((*result.shape, *argument.shape)))


def test_jvp_of_a_switch_that_no_tangent_reaches() -> None:
    def fun(x: Tensor) -> Tensor:
        picked = xf.cond(x.sum() > 0, lambda: (x > 0.5).float(), lambda: torch.zeros(4))
        return x * picked

    got = xf.device_get(xf.jvp(fun, (X,), (torch.ones(4),)))
    mask = (X > 0.5).float()
    torch.testing.assert_close(got, (X * mask, mask))


def test_hessian_of_nested_loops_around_a_value_made_outside() -> None:
    """The value is wrapped by levels of torch.func that have ended when the loops run again."""

    def loops(x: Tensor) -> Tensor:
        k = torch.arange(4)

        def inner(d: Tensor, _: None) -> tuple[Tensor, None]:
            return torch.sin(d) * k / 4, None

        def outer(c: Tensor, _: None) -> tuple[Tensor, None]:
            return xf.scan(inner, c, None, 2)[0], None

        return xf.scan(outer, x, None, 2)[0].sum()

    def plain(x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.sin(x) * torch.arange(4) / 4
        return x.sum()

    torch.testing.assert_close(xf.device_get(xf.hessian(loops)(X)), torch.func.hessian(plain)(X))


@pytest.mark.parametrize("second", [xf.jacrev, xf.jacfwd, xf.hessian, xf.vmap])
def test_a_closure_used_for_its_shape_alone(second: Callable[..., Callable[..., Tensor]]) -> None:
    def fun(x: Tensor) -> Tensor:
        k = x * 2

        def outer(c: Tensor) -> Tensor:
            return xf.jit(lambda d: d * (k.ndim + 2))(c)

        return xf.jit(outer)(x)

    xf.jit(fun)(X)
    got = xf.device_get(second(fun)(X))
    want = {xf.jacrev: torch.eye(4) * 3, xf.jacfwd: torch.eye(4) * 3, xf.vmap: X * 2}
    torch.testing.assert_close(got, want.get(second, torch.zeros(4, 4, 4)))


def test_batched_tangent_of_an_activation_of_a_scalar() -> None:
    """torch_xla gives the derivative the shape of the input, to which the tangent may be wider."""
    x = torch.tensor(0.7)
    for f in ("relu", "hardswish", "hardsigmoid", "gelu", "hardshrink", "softshrink"):
        activation = getattr(torch.nn.functional, f)
        want = torch.func.grad(activation)(x)
        torch.testing.assert_close(xf.jacfwd(activation)(x).cpu(), want)
