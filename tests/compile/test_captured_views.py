"""Inner functions that capture a value of the outer one that was changed in place.

torch_xla makes a view again, under a new number, when it is next looked at after its base has
changed: inside an inner function, that looked like a value of the inner function's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
Fun = Callable[[Tensor], Tensor]
X, T = torch.arange(6.0).reshape(3, 2).sin(), torch.arange(6.0).reshape(3, 2).cos()
ONE, TRUE = torch.ones(()), torch.tensor(True)


def _written(x: Tensor) -> Tensor:
    y = (x * 2).t()
    y[1] += x[:, 0]
    return y


def _turned(x: Tensor) -> Tensor:
    y = x * 2
    y.swapdims_(-1, -2)
    y[1::2] *= 3
    return y


def _base_written(x: Tensor) -> Tensor:
    y = x * 2
    part = y[:, 1:]
    y[1] = x[0]
    y.mul_(x)
    return part


CHANGES = (_written, _turned, _base_written)


INNERS: dict[str, Callable[[Fun], Tensor]] = {
    "checkpoint": lambda f: xf.checkpoint(f)(ONE),
    "jit": lambda f: xf.jit(f)(ONE),
    "cond": lambda f: xf.cond(TRUE, f, lambda a: 0 * f(a), ONE),
    "switch": lambda f: xf.switch(torch.tensor(0), [f, lambda a: 0 * f(a)], ONE),
    "scan": lambda f: xf.scan(lambda c, a: (c, f(a)), None, torch.ones(1))[1][0],
    "map": lambda f: xf.map(f, torch.ones(1))[0],
    "vmap": lambda f: xf.vmap(f)(torch.ones(1))[0],
    "vjp": lambda f: xf.vjp(f, ONE)[0],
    "jvp": lambda f: xf.jvp(f, (ONE,), (ONE,))[0],
    "jvp of checkpoint": lambda f: xf.jvp(xf.checkpoint(f), (ONE,), (ONE,))[0],
}

OUTER: dict[str, tuple[Callable[[Fun], Any], Callable[[Fun], Any]]] = {
    "jit": (lambda f: xf.jit(f)(X), lambda f: f(X)),
    "jvp": (lambda f: xf.jvp(f, (X,), (T,)), lambda f: torch.func.jvp(f, (X,), (T,))),
    "linearize": (
        lambda f: xf.linearize(f, X)[1](T),
        lambda f: torch.func.jvp(f, (X,), (T,))[1],
    ),
    "grad": (
        lambda f: xf.grad(lambda x: f(x).sin().sum())(X),
        lambda f: torch.func.grad(lambda x: f(x).sin().sum())(X),
    ),
    "jit of grad": (
        lambda f: xf.jit(xf.grad(lambda x: f(x).sin().sum()))(X),
        lambda f: torch.func.grad(lambda x: f(x).sin().sum())(X),
    ),
    "hessian": (
        lambda f: xf.hessian(lambda x: f(x).sin().sum())(X),
        lambda f: torch.func.hessian(lambda x: f(x).sin().sum())(X),
    ),
    "vmap of grad": (
        lambda f: xf.vmap(xf.grad(lambda x: f(x).sin().sum()))(X[None]),
        lambda f: torch.func.grad(lambda x: f(x).sin().sum())(X)[None],
    ),
}


CASES = [
    *((_written, inner, outer) for inner in INNERS for outer in ("jvp", "grad", "vmap of grad")),
    *((change, "checkpoint", outer) for change in (_turned, _base_written) for outer in OUTER),
]


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize(("change", "inner", "outer"), CASES)
def test_inner_function_captures_view_changed_in_place(change: Fun, inner: str, outer: str) -> None:
    def fun(x: Tensor) -> Tensor:
        y = change(x)
        return INNERS[inner](lambda a: y * y * a)

    def plain(x: Tensor) -> Tensor:
        y = change(x)
        return y * y

    ours, torchs = OUTER[outer]
    torch.testing.assert_close(xf.device_get(ours(fun)), torchs(plain))


@pytest.mark.parametrize("outer", ["jvp", "grad", "hessian"])
def test_inner_function_captures_changed_view_under_jvp(outer: str) -> None:
    """The inner function sees torch.func's wrapper of it, which no call made."""

    def fun(x: Tensor) -> Tensor:
        y = _written(x)
        return xf.jvp(lambda v: xf.checkpoint(lambda a: v * v * a)(ONE), (y,), (y,))[1]

    def plain(x: Tensor) -> Tensor:
        y = _written(x)
        return 2 * y * y

    ours, torchs = OUTER[outer]
    torch.testing.assert_close(xf.device_get(ours(fun)), torchs(plain))
