"""Functions of lists of tensors: torch.foreach of torch 2.15, and torch's private names before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
Call = Callable[..., Sequence[Tensor]]
X = torch.tensor([[0.3, 0.7, 1.5], [0.9, 0.2, 0.7]], dtype=torch.float64)
Y = torch.tensor([[0.5, 0.6, 0.4], [0.8, 0.7, 1.1]], dtype=torch.float64)

CASES: dict[str, tuple[Call, Call]] = {
    "abs": (lambda f, x, y: f([x, -y]), lambda x, y: (x.abs(), y.neg().abs())),
    "max": (lambda f, x, y: f([x, y]), lambda x, y: (x.max(), y.max())),
    "norm": (lambda f, x, y: f((x, y), ord=1), lambda x, y: (x.abs().sum(), y.abs().sum())),
    "add": (lambda f, x, y: f([x, y], [y, x], alpha=2), lambda x, y: (x + 2 * y, y + 2 * x)),
    "mul": (lambda f, x, y: f([x, y], [2.0, 3.0]), lambda x, y: (x * 2, y * 3)),
    "div": (lambda f, x, y: f([x, y], y.sum()), lambda x, y: (x / y.sum(), y / y.sum())),
    "pow": (lambda f, x, y: f(2.0, [x, y]), lambda x, y: (2**x, 2**y)),
    "maximum": (
        lambda f, x, y: f([x, y], 0.7),
        lambda x, y: [torch.maximum(z, torch.tensor(0.7, dtype=z.dtype)) for z in (x, y)],
    ),
    "lerp": (lambda f, x, y: f([x], [y], 0.3), lambda x, y: (torch.lerp(x, y, 0.3),)),
    "addcmul": (
        lambda f, x, y: f([x, y], [y, x], [y, y], value=0.5),
        lambda x, y: (x + y * y / 2, y + x * y / 2),
    ),
    "addcdiv": (
        lambda f, x, y: f([x, y], [y, x], [y, y]),
        lambda x, y: (x + 1, y + x / y),
    ),
    "sin_": (lambda f, x, y: f([x * 1, y * 1]), lambda x, y: (x.sin(), y.sin())),
    "sub_": (lambda f, x, y: f([x * y, y * 1], [y, x]), lambda x, y: (x * y - y, y - x)),
    "pow_": (lambda f, x, y: f([x * 1, y * 1], [2.0, 3.0]), lambda x, y: (x**2, y**3)),
    "minimum_": (lambda f, x, y: f([x * 1], [y]), lambda x, y: (torch.minimum(x, y),)),
    "addcmul_": (lambda f, x, y: f([x * 1], [x], [y], value=2.0), lambda x, y: (x + 2 * x * y,)),
    "copy_": (lambda f, x, y: f([x * 1, y * 1], [y, x]), lambda x, y: (y, x)),
    "zero_": (lambda f, x, y: f([x * 1, y * 1]), lambda x, y: (x * 0, y * 0)),
}


def functions(name: str) -> list[Callable[..., Any]]:
    found: Any = getattr(torch, "foreach", None)
    private = getattr(torch, f"_foreach_{name}")
    return [private] if found is None else [private, getattr(found, name)]


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_function_of_each_tensor(name: str) -> None:
    call, each = CASES[name]

    def expected(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (*each(x, y),)

    def total(of: Call, x: Tensor, y: Tensor) -> Tensor:
        return sum((out.sin().sum() for out in of(x, y)), x.new_zeros(()))

    for function in functions(name):

        def run(x: Tensor, y: Tensor, function: Any = function) -> tuple[Tensor, ...]:
            return (*call(function, x, y),)

        def both(transform: Callable[..., Any], other: Callable[..., Any], run: Any = run) -> None:
            got = xf.device_get(xf.jit(transform(run))(X, Y))
            torch.testing.assert_close(got, other(expected)(X, Y))

        both(lambda f: f, lambda f: f)
        both(xf.vmap, torch.func.vmap)
        both(
            lambda f: lambda x, y: xf.jvp(f, (x, y), (y, x)),
            lambda f: lambda x, y: torch.func.jvp(f, (x, y), (y, x)),
        )
        both(
            lambda f: xf.grad(lambda x, y: total(f, x, y), argnums=(0, 1)),
            lambda f: torch.func.grad(lambda x, y: total(f, x, y), argnums=(0, 1)),
        )
        both(
            lambda f: xf.vmap(xf.grad(lambda x, y: total(f, x, y))),
            lambda f: torch.func.vmap(torch.func.grad(lambda x, y: total(f, x, y))),
        )


@pytest.mark.parametrize("factors", [[1.0, 2.0], torch.tensor([1.0, 2.0])], ids=type)
def test_factors_of_a_list(factors: Any) -> None:
    for function, name in zip(functions("addcdiv"), ("scalars", "value"), strict=False):
        got = xf.jit(lambda x, f=function, n=name: f([x, x], [x, x], [X, X], **{n: factors}))(X)
        torch.testing.assert_close(xf.device_get(got), (X + 1, X + 2))


@pytest.mark.parametrize("name", ["add_", "maximum_"])
def test_change_in_place_returns_the_list(name: str) -> None:
    for function in functions(name):

        def run(x: Tensor, function: Any = function) -> list[Tensor]:
            lists = [x * 1, x * 2]
            assert function(lists, [x, x]) is lists
            return lists

        torch.testing.assert_close(xf.device_get(xf.jit(run)(X)), run(X))


def test_extremes_of_integers_and_a_number() -> None:
    x = torch.tensor([0, 5, 200], dtype=torch.uint8)
    for function in (*functions("maximum"), *functions("minimum")):
        for number in (3, -1) if "max" in function.__name__ else (3, 255):
            got = xf.jit(lambda x, f=function, n=number: f([x], n))(x)
            torch.testing.assert_close(xf.device_get(got), function([x], number))


def test_lists_that_do_not_fit_are_refused_as_by_torch() -> None:
    for function in functions("add_"):
        for lists in (([X, X], [X]), ([], []), ([X], X)):
            for run in (function, xf.jit(function)):
                with pytest.raises(RuntimeError, match=r"Tensor lists? must|expected to be 0 dim"):
                    run(*lists)
        with pytest.raises(RuntimeError, match=r"can't be cast|cannot be written"):
            xf.jit(lambda x, f=function: f([x.long()], 0.5))(X)


def test_changed_argument_is_refused() -> None:
    for function in functions("mul_"):
        with pytest.raises(xf.errors.PurityError, match=r"Tensor\.mul_ changes x .*in place"):
            xf.jit(lambda x, f=function: f([x], 2.0))(X)


def test_error_names_the_function_that_made_a_leaked_value() -> None:
    kept: list[Tensor] = []
    for function in functions("mul"):
        with pytest.raises(xf.errors.LeakError, match=r"made by torch\.(_foreach_|foreach\.)mul"):
            xf.jit(lambda x, f=function: kept.extend(f([x], 2.0)))(X)
        kept.clear()
