"""Copies and pickles of transformed functions."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.arange(1.0, 4.0)


def squares(x: Tensor) -> Tensor:
    """A function that is pickled by its name."""
    return (x * x).sum()


def power(x: Tensor, n: int) -> Tensor:
    """Likewise, with an argument to be static."""
    return x**n


@xf.jit
def decorated(x: Tensor) -> Tensor:
    """A jitted function under its own name."""
    return x + 1


class Model:
    """A class with a jitted method."""

    def __init__(self) -> None:
        self.scale = 2.0
        self.step = xf.jit(self.scaled)

    def scaled(self, x: Tensor) -> Tensor:
        """The method as it is."""
        return x * self.scale

    @xf.jit
    def plus(self: Any, x: Tensor) -> Tensor:
        """A method that is jitted in the class."""
        return x + 1


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "jit": lambda: xf.jit(squares),
    "jit with a donated argument": lambda: xf.jit(squares, donate_argnums=0),
    "grad": lambda: xf.grad(squares),
    "value_and_grad": lambda: xf.value_and_grad(squares),
    "vmap": lambda: xf.vmap(squares, in_axes=0),
    "checkpoint": lambda: xf.checkpoint(squares),
    "hessian": lambda: xf.hessian(squares),
    "jit of grad": lambda: xf.jit(xf.grad(squares)),
    "linear": lambda: xf.jacfwd(squares, argnums=0),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_copy_and_pickle_of_a_transformed_function(name: str) -> None:
    fun = TRANSFORMS[name]()
    x = X[:, None] if name == "vmap" else X
    want = xf.device_get(fun(x))  # Only the first call makes what cannot be copied.
    for other in (copy.copy(fun), copy.deepcopy(fun), pickle.loads(pickle.dumps(fun))):
        assert type(other) is type(fun)
        torch.testing.assert_close(xf.device_get(other(x)), want)


def test_copy_of_a_jitted_function_has_its_programs() -> None:
    fun = xf.jit(lambda x: x * 3)
    fun(X)
    assert copy.deepcopy(fun)(X).tolist() == [3.0, 6.0, 9.0]
    assert fun.cache_info().traces == 1


def test_pickle_keeps_static_arguments() -> None:
    fun = pickle.loads(pickle.dumps(xf.jit(power, static_argnames="n")))
    assert fun(X, 2).tolist() == [1.0, 4.0, 9.0]


def test_decorated_function_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.deepcopy(decorated) is decorated
    assert pickle.loads(pickle.dumps(Model.plus)) is Model.plus


def test_deepcopy_of_an_object_with_a_jitted_method() -> None:
    model = Model()
    assert model.step(X).tolist() == [2.0, 4.0, 6.0]
    other = copy.deepcopy(model)
    other.scale = 3.0
    assert other.step(X).tolist() == [3.0, 6.0, 9.0]
    assert model.step(X).tolist() == [2.0, 4.0, 6.0]


def test_deepcopy_of_custom_rules() -> None:
    @xf.custom_vjp
    def double(x: Tensor) -> Tensor:
        return x * 2

    double.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * 7,))

    @xf.custom_jvp
    def triple(x: Tensor) -> Tensor:
        return x * 3

    triple.defjvp(lambda primals, tangents: (primals[0] * 3, tangents[0] * 5))
    assert xf.grad(copy.deepcopy(double))(torch.tensor(1.0)).item() == 7
    assert xf.grad(copy.deepcopy(triple))(torch.tensor(1.0)).item() == 5
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"local|pickle"):
        pickle.dumps(double)
