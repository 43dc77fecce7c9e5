"""Operators between traced values and NumPy arrays give what eager torch gives, or its errors."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor


def written(code: str) -> Callable[[Any, Any], Any]:
    """A function of `x` and `y` with this code."""
    names: dict[str, Any] = {}
    exec(f"def function(x, y):\n    {code}\n    return x", names)
    return names["function"]


BINARY = "+ - * / // % ** @ & | ^ << >>".split()
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{f"x {o} y": written(f"x = x {o} y") for o in (*BINARY, "==", "<", "<=", ">", ">=")},
    **{f"x {o}= y": written(f"x {o}= y") for o in BINARY},
}
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "torch.add": torch.add,
    "torch.mul": torch.mul,
    "torch.matmul": torch.matmul,
    "torch.where": lambda x, y: torch.where(x > 1, x, y),
    "x.add": lambda x, y: x.add(y),
    "x.eq": lambda x, y: x.eq(y),
    "x.pow": lambda x, y: x.pow(y),
    "x[y]": lambda x, y: x[y],
    "x[None, y]": lambda x, y: x[None, y],
}
DTYPES = "float32 float64 float16 bfloat16 int64 int32 int8 uint8 bool complex64".split()
ARRAYS: dict[str, Callable[[Any], Any]] = {
    "array": lambda matrix: matrix[0],
    "matrix": lambda matrix: matrix[:, ::-1],
    "0-d array": lambda matrix: np.array(matrix[2, 1]),
    "scalar": lambda matrix: matrix[2, 1],
}
X = torch.tensor([1, 2, 3])


@pytest.mark.filterwarnings("ignore")  # of NumPy and torch about each other
@pytest.mark.sample(6, seed=0)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
@pytest.mark.parametrize("name", [*OPERATORS, *FUNCTIONS])
def test_operator_of_a_traced_value_and_an_array(name: str, dtype: str) -> None:
    operation = (OPERATORS | FUNCTIONS)[name]
    zero = 1 if "/" in name or "%" in name else 0  # What divides integers must not be 0.
    matrix = np.array([[1, zero, 2], [3, 1, 1], [2, 2, 1]]).astype(dtype)
    calls: dict[str, Callable[[Tensor], Any]] = {}
    for kind, own in itertools.product(ARRAYS, DTYPES):
        if (kind, dtype) == ("scalar", "complex64"):
            continue  # Eager torch drops its imaginary part.
        if kind == "scalar" and name[2] in "&|^" and not is_whole(own, dtype):
            continue  # XLA refuses bits of floating-point numbers, but only when it compiles.
        calls |= both_sides(f"{kind} and {own}", operation, ARRAYS[kind](matrix), own)
        if name in FUNCTIONS:
            del calls[f"{kind} and {own}, reflected"]
    want = {kind: outcome(call, X) for kind, call in calls.items()}
    wrong = [kind for kind in calls if isinstance(want[kind], type)]
    refused = {kind: outcome(functools.partial(xf.eval_shape, calls[kind]), X) for kind in wrong}
    for kind, error in refused.items():
        assert isinstance(error, type), f"{kind}: accepted, where eager torch raises {want[kind]}"
        assert issubclass(error, want[kind]) or issubclass(want[kind], error), kind
    allowed = {kind: call for kind, call in calls.items() if kind not in refused}
    found = xf.device_get(xf.jit(lambda x: {kind: f(x) for kind, f in allowed.items()})(X))
    for kind, result in found.items():
        torch.testing.assert_close(
            torch.as_tensor(result), want[kind], rtol=1e-2, atol=1e-5, equal_nan=True, msg=kind
        )


def is_whole(*dtypes: str) -> bool:
    return all("int" in d or d == "bool" for d in dtypes)


def both_sides(
    kind: str, operation: Callable[[Any, Any], Any], array: Any, own: str
) -> dict[str, Callable[[Tensor], Any]]:
    """The operation with a tensor on the left and on the right."""
    dtype = getattr(torch, own)
    return {
        kind: lambda x: operation(x.to(dtype, copy=True), array),
        f"{kind}, reflected": lambda x: operation(array, x.to(dtype, copy=True)),
    }


def outcome(fun: Callable[[Tensor], Any], x: Tensor) -> Any:
    """The result as a tensor, or the kind of the error."""
    try:
        return torch.as_tensor(fun(x))
    except Exception as error:
        return type(error)


def test_derivatives_and_batches_of_operators_with_arrays() -> None:
    array, scale = np.array([1.0, 2.0, 3.0]), np.arange(9.0).reshape(3, 3)
    x = torch.tensor([0.5, 1.5, -1.0], dtype=torch.float64)

    def f(x: Any) -> Any:
        return ((x + array) ** np.array([2, 1, 3]) / np.float64(2)) @ scale

    def same(x: Tensor) -> Tensor:
        powers = (x + torch.from_numpy(array)) ** torch.tensor([2, 1, 3])
        return powers / 2 @ torch.from_numpy(scale)

    want = torch.autograd.functional.jacobian(same, x)
    for jacobian in (xf.jacrev, xf.jacfwd):
        torch.testing.assert_close(xf.device_get(xf.jit(jacobian(f))(x)), want)
    torch.testing.assert_close(
        xf.device_get(xf.vmap(f)(torch.stack([x, 2 * x]))), torch.stack([same(x), same(2 * x)])
    )


def test_array_operand_that_changes() -> None:
    array = np.ones(3)
    fun = xf.jit(lambda x: x + array)
    assert fun(X).tolist() == [2, 3, 4]
    array[1] = 5
    assert fun(X).tolist() == [2, 7, 4]


READS: dict[str, Callable[[Tensor], Any]] = {
    "np.asarray": np.asarray,
    "np.add": lambda x: np.add(x, np.ones(3)),
    "np.sin": np.sin,
    "operator.add": lambda x: operator.add(x, np.ones(3)),
    "an operator of bfloat16": lambda x: x.bfloat16() + np.ones(3),
}


@pytest.mark.parametrize("name", READS)
def test_reading_as_an_array_is_refused_beside_operators_too(name: str) -> None:
    with pytest.raises(xf.errors.ConcretizationError, match=r"torch\.from_numpy\(array\)"):
        xf.jit(lambda x: (x + np.ones(3)) * torch.as_tensor(READS[name](x)))(X)


def test_operator_that_read_a_value_and_made_no_tensor_is_refused() -> None:
    def fun(x: Tensor) -> Tensor:
        with contextlib.suppress(TypeError):
            _ = x & np.ones(3)
        return x

    with pytest.raises(xf.errors.ConcretizationError, match="an operator read a traced value"):
        xf.jit(fun)(X)


def test_operators_that_torch_lacks_are_explained() -> None:
    for fun in (lambda x: np.ones(3) + x, lambda x: np.ones(3) * x, lambda x: x < np.ones(3)):
        with pytest.raises(TypeError, match=r"not supported|unsupported|not implemented") as caught:
            xf.jit(fun)(X)
        assert "torch.from_numpy(array)" in "".join(caught.value.__notes__)


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # of NumPy about torch
def test_operators_of_what_is_closed_over_leave_it_as_it_was() -> None:
    weight, array = torch.tensor([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 2.0])
    want = X + (weight * array + 1)
    assert xf.jit(lambda x: x + (weight * array + 1))(X).tolist() == want.tolist()
    with pytest.raises(ValueError, match="broadcast"):
        xf.jit(lambda x: x + weight * np.ones(4))(X)
    assert not vars(weight)
    assert (weight * array).tolist() == [1, 0, 6]
    inside = xf.grad(lambda x: xf.jit(lambda x: (x * array).sum())(weight * x))
    torch.testing.assert_close(xf.device_get(inside(weight)), weight * torch.tensor([1.0, 0, 2]))


def test_power_of_integers_by_a_negative_array_is_refused_as_by_numpy() -> None:
    with pytest.raises(ValueError, match="Integers to negative integer powers"):
        xf.jit(lambda x: x ** np.array([1, -1, 2]))(X)
