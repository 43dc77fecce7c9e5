"""Tensors made inside of transformed functions: by `new_tensor`, `new`, `torch.tensor` and others.

Each function makes [1, 2, 3] beside its argument x, and returns the sum of their product.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

Tensor = torch.Tensor
MADE = torch.tensor([1.0, 2.0, 3.0])

FACTORIES: dict[str, Callable[[Tensor], Tensor]] = {
    "new_tensor": lambda x: x.new_tensor([1.0, 2.0, 3.0]),
    "new_tensor of dtype": lambda x: x.new_tensor([1, 2, 3], dtype=torch.int64),
    "new_tensor of a number": lambda x: torch.stack([x.new_tensor(n) for n in (1, 2, 3)]),
    "new_tensor of an array": lambda x: x.new_tensor(np.array([1, 2, 3])),
    "new_tensor of a captured tensor": lambda x: x.new_tensor(MADE),
    "new_tensor of a captured tensor's": lambda x: MADE.new_tensor([1, 2, 3]),
    "new_tensor as a mask": lambda x: MADE[x.new_tensor([1, 1, 1], dtype=torch.bool)],
    "new of a list": lambda x: x.new([1, 2, 3]),
    "new of sizes": lambda x: x.new(1, 3).copy_(MADE)[0],
    "new of a size": lambda x: x.new(x.shape).copy_(MADE),
    "new of nothing": lambda x: torch.cat([x.new(), MADE]),
    "new of a captured tensor": lambda x: x.new(MADE),
    "new_full": lambda x: x.new_full((3,), 1.0).cumsum(0),
    "new_zeros": lambda x: x.new_zeros(3) + MADE,
    "new_ones": lambda x: x.new_ones(3).cumsum(0),
    "new_empty": lambda x: x.new_empty(3).copy_(MADE),
    "new_empty_strided": lambda x: x.new_empty_strided((3,), (1,)).copy_(MADE),
    "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0]),
    "tensor of a captured tensor": lambda x: torch.tensor(MADE),
    "as_tensor": lambda x: torch.as_tensor([1.0, 2.0, 3.0]),
    "asarray": lambda x: torch.asarray([1.0, 2.0, 3.0]),
    "full_like": lambda x: torch.full_like(x, 1.0).cumsum(0),
    "scalar_tensor": lambda x: torch.scalar_tensor(1.0).expand(3).cumsum(0),
}
X = torch.tensor([[3.0, 1.0, 2.0], [-1.0, 4.0, 0.5]])
DOTS = torch.tensor([11.0, 8.5])
ONES = torch.ones(3)

Function = Callable[[Tensor], Tensor]


def over_rows(f: Function) -> Function:
    return lambda x: xf.vmap(f)(x).sum()


def scanned(f: Function) -> Function:
    return lambda x: xf.scan(lambda c, row: (c + f(row), None), torch.zeros(()), x)[0]


MODES: dict[str, tuple[Callable[[Function], Function], Tensor]] = {
    "vmap(grad)": (lambda f: xf.vmap(xf.grad(f)), MADE.expand(2, 3)),
    "grad(vmap)": (lambda f: xf.grad(over_rows(f)), MADE.expand(2, 3)),
    "jvp": (lambda f: lambda x: xf.jvp(f, (x[0],), (ONES,))[1], torch.tensor(6.0)),
    "vmap(jvp)": (
        lambda f: xf.vmap(lambda x: xf.jvp(f, (x,), (ONES,))[1]),
        torch.tensor([6.0, 6.0]),
    ),
    "jacfwd": (lambda f: lambda x: xf.jacfwd(f)(x[1]), MADE),
    "jit(jacrev)": (lambda f: xf.jit(lambda x: xf.jacrev(f)(x[1])), MADE),
    "vmap(scan)": (lambda f: lambda x: xf.vmap(scanned(f))(x[:, None]), DOTS),
    "grad(scan)": (lambda f: xf.grad(scanned(f)), MADE.expand(2, 3)),
}


@pytest.mark.sample(16, seed=0)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FACTORIES)
def test_factory_inside_transforms(name: str, mode: str) -> None:
    make = FACTORIES[name]
    transform, want = MODES[mode]
    found = transform(lambda x: (x * make(x)).sum())(X)
    assert torch.equal(found.cpu(), want)


@pytest.mark.parametrize("name", ["new_tensor", "new of a list", "new of sizes", "tensor"])
def test_factory_inside_vmap_of_grad(name: str) -> None:
    test_factory_inside_transforms(name, "vmap(grad)")


def test_new_tensor_of_traced_value_is_a_copy_without_gradient() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * x.new_tensor(x)).sum()

    assert torch.equal(xf.vmap(xf.grad(f))(X).cpu(), X)


def test_new_of_traced_value_is_the_value() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * x.new(x)).sum()

    assert torch.equal(xf.vmap(xf.grad(f))(X).cpu(), 2 * X)


def test_new_tensor_of_traced_values_in_a_list_raises() -> None:
    with pytest.raises(xf.errors.ConcretizationError, match=r"use torch\.stack"):
        xf.jit(lambda x: x.new_tensor([x[0, 0], 1.0]))(X)


@pytest.mark.parametrize("wrong", [2.0, torch.tensor([1])])
def test_new_of_what_torch_refuses_raises(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"new\(\): (data must be a sequence|expected torch.float)"):
        xf.jit(lambda x: x.new(wrong))(X)
