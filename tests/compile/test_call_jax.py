"""`call_jax`: functions of JAX in the programs of xfunc."""

from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.errors import CompileError, UnsupportedOpError

X = torch.tensor([[3.0, -1.0, 0.5], [0.0, 2.0, -4.0]])
Y = torch.tensor([[4.0, 1.0, -0.5], [1.0, -2.0, 0.25]])


def call(name: str, *args: Any, **static: Any) -> tuple[torch.Tensor, ...]:
    return xf.call_jax(f"tests.compile.foreign_functions:{name}", *args, platform="cpu", **static)


def square(x: torch.Tensor) -> torch.Tensor:
    return call("square", x)[0]


squared = xf.custom_vjp(square)
squared.defvjp(lambda x: (square(x), x), lambda x, ct: call("double", x, ct))


@pytest.mark.parametrize("shift", [None, torch.tensor(1.5)])
def test_call_jax_values(shift):
    polar = xf.jit(lambda x, y, shift: call("polar", x, y, shift, scale=2.0))
    radius, angle = xf.device_get(polar(X, Y, shift))
    torch.testing.assert_close(radius, 2 * torch.hypot(X, Y))
    torch.testing.assert_close(angle, torch.atan2(Y, X) + (0.0 if shift is None else 1.5))


def test_call_jax_gradient_by_custom_vjp():
    value, grad = xf.value_and_grad(lambda x: squared(x).sum())(X)
    torch.testing.assert_close(xf.device_get((value, grad)), ((X**2).sum(), 2 * X))


def test_call_jax_operations_are_simplified_together():
    def turned_twice(x):
        return call("turned", *call("turned", x))[0]

    same = xf.custom_vjp(turned_twice)
    same.defvjp(lambda x: (turned_twice(x), None), lambda _, ct: (turned_twice(ct),))
    value, grad = xf.value_and_grad(lambda x: xf.checkpoint(lambda x: same(x).sin())(x).sum())(X)
    torch.testing.assert_close(xf.device_get((value, grad)), (X.sin().sum(), X.cos()))


def test_call_jax_in_scan_and_cond():
    def program(x):
        def step(c, row):
            return xf.cond(row.sum() > 0, squared, lambda r: r, row) + c, None

        return xf.scan(step, torch.zeros_like(x[0]), x)[0].sum()

    got = xf.device_get(xf.jit(xf.value_and_grad(program))(X))
    positive = X.sum(1, keepdim=True) > 0
    want = torch.where(positive, X**2, X).sum(), torch.where(positive, 2 * X, 1.0)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "backend", [pytest.param("torch_xla", marks=pytest.mark.torch_xla), "pjrt"]
)
def test_call_jax_pallas_kernel(backend, request):
    if backend == "pjrt":
        request.getfixturevalue("pjrt")
    x = torch.randn(5, 3)
    got = xf.jit(lambda x: call("running_sums", x, scale=2.0)[0].tanh())(x)
    torch.testing.assert_close(got.cpu(), (2 * x.cumsum(0)).tanh())


@pytest.mark.parametrize("transform", [xf.grad, xf.jacfwd, xf.hessian])
def test_call_jax_without_rule_is_not_differentiable(transform):
    with pytest.raises(UnsupportedOpError, match=r"functions:square.* cannot be differentiated"):
        transform(lambda x: square(x).sum())(X)


def test_call_jax_second_derivative_is_refused():
    with pytest.raises(UnsupportedOpError, match=r"differentiated here(.|\n)*first derivative"):
        xf.grad(lambda x: xf.grad(lambda y: squared(y).sum())(x).sum())(X)


def test_call_jax_vmap_is_refused():
    with pytest.raises(UnsupportedOpError, match=r"cannot be batched(.|\n)*Hint: use jax\.vmap"):
        xf.vmap(square)(X)


def test_call_jax_outside_a_trace_is_refused():
    with pytest.raises(UnsupportedOpError, match=r"square is called outside a traced function"):
        square(X)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.complex128, torch.int32])
def test_call_jax_64_bit_dtypes(dtype):
    x = (X * 2**40 / 3).to(dtype) if dtype.itemsize > 4 else X.to(dtype)
    got = xf.jit(square)(x)
    assert got.dtype is dtype
    assert torch.equal(xf.device_get(got), x * x)


def test_call_jax_numbers_have_32_bits_unless_an_argument_has_64():
    def result(x):
        return xf.jit(lambda x: call("places", x)[0])(x).dtype

    assert result(X) is torch.int32
    assert result(X.double()) is torch.int64


def test_call_jax_of_a_function_itself():
    import jax.numpy as jnp

    def hypot(x, y, *, scale):
        return scale * jnp.hypot(x, y)

    program = xf.jit(lambda x, y: xf.call_jax(hypot, x, y, scale=2.0)[0] + 1)
    torch.testing.assert_close(xf.device_get(program(X, Y)), 2 * torch.hypot(X, Y) + 1)
    with pytest.raises(CompileError, match=r"test_call_jax:\S+hypot for .*'scale'"):
        xf.jit(lambda x: xf.call_jax(hypot, x, x)[0])(X)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "nothing",
            r"AttributeError: module '\S+foreign_functions' has no attribute 'nothing'",
        ),
        ("rows", r"TypeError: .*\(2, 3\).*\(7, -1\)"),
    ],
)
def test_call_jax_lowering_error(name, said):
    with pytest.raises(CompileError, match=rf"could not lower .*:{name} for .*'cpu'.*said: {said}"):
        xf.jit(lambda x: call(name, x)[0])(X)


def test_call_jax_missing_module():
    with pytest.raises(CompileError, match=r"said: ModuleNotFoundError: No module named 'nowhere'"):
        xf.jit(lambda x: xf.call_jax("nowhere:f", x, platform="cpu")[0])(X)
