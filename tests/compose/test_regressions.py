"""The smallest forms of the faults that random programs have found.

Their faults in changes in place and views are in ``tests/operations``, in ``test_in_place.py`` and
``test_views.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.linspace(0.1, 0.9, 4)
S = torch.tensor(0.7)
I = torch.tensor([[1, -1], [-4, 1]], dtype=torch.int32)  # noqa: E741
U = torch.tensor([3, 0, 255, 7], dtype=torch.uint8)
B = torch.tensor([True, False, True])
F = torch.tensor([0.5, -0.25, 2.0])
C = torch.tensor([[1 + 2j, 0.5], [3j, -1 - 1j]])


# -- against JAX ----------------------------------------------------------------------------------


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
def test_jvp_number_beside_0d_tensor_keeps_dtype(
    fun: Callable[[Tensor], Tensor], slope: float
) -> None:
    """torch.func.jvp alone makes these tangents float64."""
    _, dot = xf.jvp(fun, (S,), (torch.tensor(1.0),))
    torch.testing.assert_close(xf.device_get(dot), torch.tensor(slope))


def test_scan_over_scalars_jvp() -> None:
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
def test_jacobian_of_scalar_by_scalar(transform: Callable[..., Callable[..., Tensor]]) -> None:
    torch.testing.assert_close(xf.device_get(transform(torch.sin)(S)), torch.cos(S))


@pytest.mark.parametrize("argument", [S, X])
@pytest.mark.parametrize("result", [S, X])
@pytest.mark.parametrize("transform", [xf.jacfwd, xf.jacrev])
def test_jacobian_of_constant(
    transform: Callable[..., Callable[..., Tensor]], result: Tensor, argument: Tensor
) -> None:
    """torch.func.vmap with out_dims=-1 reads beyond the shape of an output that is not batched."""
    got = xf.device_get(transform(lambda _: result.sin())(argument))
    torch.testing.assert_close(got, torch.zeros((*result.shape, *argument.shape)))


def test_cond_jvp_without_tangents() -> None:
    def fun(x: Tensor) -> Tensor:
        picked = xf.cond(x.sum() > 0, lambda: (x > 0.5).float(), lambda: torch.zeros(4))
        return x * picked

    got = xf.device_get(xf.jvp(fun, (X,), (torch.ones(4),)))
    mask = (X > 0.5).float()
    torch.testing.assert_close(got, (X * mask, mask))


def test_scan_nested_hessian_with_captured_value() -> None:
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
def test_jit_nested_closure_used_for_shape_only(
    second: Callable[..., Callable[..., Tensor]],
) -> None:
    def fun(x: Tensor) -> Tensor:
        k = x * 2

        def outer(c: Tensor) -> Tensor:
            return xf.jit(lambda d: d * (k.ndim + 2))(c)

        return xf.jit(outer)(x)

    xf.jit(fun)(X)
    got = xf.device_get(second(fun)(X))
    want = {xf.jacrev: torch.eye(4) * 3, xf.jacfwd: torch.eye(4) * 3, xf.vmap: X * 2}
    torch.testing.assert_close(got, want.get(second, torch.zeros(4, 4, 4)))


def test_jacfwd_of_activation_of_scalar() -> None:
    """torch_xla gives the derivative the shape of the input, to which the tangent may be wider."""
    x = torch.tensor(0.7)
    for f in ("relu", "hardswish", "hardsigmoid", "gelu", "hardshrink", "softshrink"):
        activation = getattr(torch.nn.functional, f)
        want = torch.func.grad(activation)(x)
        torch.testing.assert_close(xf.jacfwd(activation)(x).cpu(), want)


# -- against plain torch --------------------------------------------------------------------------


def same(fun: Callable[..., Any], *args: Tensor) -> None:
    """`fun` under jit gives what it gives without."""
    torch.testing.assert_close(xf.device_get(xf.jit(fun)(*args)), fun(*args))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32, torch.uint8])
@pytest.mark.parametrize(("start", "end", "steps"), [(0, 1, 4), (3, 7.5, 11), (3, 5, 1), (1, 2, 0)])
def test_linspace(dtype: torch.dtype, start: float, end: float, steps: int) -> None:
    """torch_xla 2.9 computes it in float32."""
    same(lambda x: (torch.linspace(start, end, steps, dtype=dtype), x + 1), F)


def test_linspace_inside_transforms() -> None:
    def fun(x: Tensor) -> Tensor:
        return (x * torch.linspace(0, 1, 3)).sum()

    assert xf.grad(fun)(F).tolist() == [0.0, 0.5, 1.0]
    assert xf.vmap(fun)(F[None]).tolist() == [fun(F).item()]


def test_linspace_half_precision_in_inner_program() -> None:
    """torch_xla says that it is of half precision, and makes it of float32."""

    def fun(x: Tensor) -> Tensor:
        line = torch.linspace(0, 1, 3, dtype=torch.float16)
        return xf.cond(x[0] > 0, lambda v: v * 2, lambda v: v * 3, line)

    assert xf.device_get(xf.jit(fun)(F)).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("fun", "x"),
    [
        (lambda x: torch.mean(x, dtype=torch.float64), U),
        (lambda x: torch.mean(x, dtype=torch.float32), B),
        (lambda x: torch.mean(x, dtype=torch.float64), F),
        (lambda x: torch.logsumexp(x, 1), I),
        (lambda x: torch.logsumexp(x, 0), U % 5),
        (lambda x: torch.logsumexp(x, 0), F),
        (lambda x: x.std(), C),
        (lambda x: x.var(0), C),
        (lambda x: x.std(-2, correction=0, keepdim=True), C),
        (lambda x: x[0, 0].clone().masked_scatter_(torch.tensor(True), x[1]), I),
        (lambda x: x[0, 0].masked_scatter(torch.tensor(False), x[1]), I),
    ],
)
def test_reductions_of_mixed_dtypes_and_scalar_masks(
    fun: Callable[[Tensor], Tensor], x: Tensor
) -> None:
    same(fun, x)


def test_view_as_real_of_complex_arange() -> None:
    """torch_xla's own view of it as real ends the process."""

    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        z = (torch.arange(6).reshape(3, 2) * -0.5).to(torch.complex64) + x[0]
        v = torch.view_as_real(z)
        z.unbind(-1)[0].sub_(0.5)
        return v, z.imag

    same(fun, F)


def test_index_put_with_0d_mask() -> None:
    def fun(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x.clone()
        z[y > 0] = 1.0
        w = x.clone()
        w[y > 0] = x * 3
        return z, w

    for y in (1.0, -1.0):
        same(fun, F, torch.tensor(y))
    got = xf.vmap(fun, in_axes=(None, 0))(F, F)
    want = [torch.stack(parts) for parts in zip(*(fun(F, y) for y in F), strict=True)]
    torch.testing.assert_close(xf.device_get(got), tuple(want))


@pytest.mark.parametrize("mask", [[True, False, True], [[True], [False]], [[[True]], [[False]]]])
def test_masked_scatter_with_broadcast_mask(mask: list[Any]) -> None:
    x, m = torch.arange(6.0).reshape(2, 3), torch.tensor(mask)

    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        if m.ndim <= 2:
            y.masked_scatter_(m, x + 10)
        return y, torch.masked_scatter(x, m, torch.arange(20.0))

    same(fun, x)
