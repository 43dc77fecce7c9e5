"""Results whose shape depends on data, where the data are constants of the code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
X = torch.arange(12.0).reshape(3, 4)
MASK = np.array([True, False, True])

CALLS: dict[str, Callable[[Tensor], object]] = {
    "mask": lambda x: x[torch.tensor([True, False, True])],
    "mask of all": lambda x: x[torch.ones(3, 4, dtype=torch.bool).tril()],
    "mask of the last dimension": lambda x: x[:, torch.tensor([True, False, False, True])],
    "mask and ellipsis": lambda x: x[..., torch.tensor([False, True, False, True])],
    "mask and numbers": lambda x: x[torch.tensor([True, False, True]), torch.tensor([1, 2])],
    "mask of nothing": lambda x: x[torch.tensor([False, False, False])],
    "computed mask": lambda x: x[torch.arange(3) > 0],
    "mask from numpy": lambda x: x[torch.from_numpy(MASK)],
    "computed mask from numpy": lambda x: x[~torch.from_numpy(MASK)],
    "masked_select": lambda x: x.masked_select(torch.tensor([True, False, True, False])),
    "repeats": lambda x: x.repeat_interleave(torch.tensor([1, 2, 0]), 0),
    "repeats of all": lambda x: torch.repeat_interleave(x[0, :3], torch.tensor([1, 2, 0])),
    "repeats of one": lambda x: x.repeat_interleave(torch.tensor([2]), dim=1),
    "repeats of a number": lambda x: x.repeat_interleave(torch.tensor(2), dim=1),
    "places": lambda x: x[torch.repeat_interleave(torch.tensor([1, 2, 0]))],
    "nonzero": lambda x: x[torch.tensor([1, 0, 1]).nonzero()],
    "nonzero as a tuple": lambda x: x[torch.tensor([1, 0, 1]).nonzero(as_tuple=True)],
    "unique": lambda x: x[torch.tensor([2, 0, 2]).unique()],
    "bincount": lambda x: x[0] * torch.bincount(torch.tensor([1, 1, 3])),
}


@pytest.mark.parametrize("name", CALLS)
def test_shape_of_a_result_that_constants_decide(name: str) -> None:
    fun = CALLS[name]
    torch.testing.assert_close(xf.device_get(xf.jit(fun)(X)), fun(X))


@pytest.mark.parametrize("name", ["mask", "mask from numpy", "repeats"])
def test_transforms_of_a_result_that_constants_decide(name: str) -> None:
    def loss(x: Tensor) -> Tensor:
        found = CALLS[name](x)
        assert isinstance(found, Tensor)
        return found.square().sum()

    x = X.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(xf.grad(loss)(X).cpu(), want)
    both = torch.stack([X, X + 1])
    each = torch.stack([loss(X), loss(X + 1)])
    torch.testing.assert_close(xf.vmap(loss)(both).cpu(), each)


def test_mask_from_an_array_that_changes() -> None:
    mask = np.array([True, False, True])
    fun = xf.jit(lambda x: x[torch.from_numpy(mask)])
    assert fun(X).shape == (2, 4)
    mask[1] = True
    torch.testing.assert_close(fun(X).cpu(), X)


def test_mask_that_is_no_constant_is_refused() -> None:
    mask = torch.tensor([True, False, True])
    match = "depends on data"
    with pytest.raises(xf.errors.UnsupportedOpError, match=match):
        xf.jit(lambda x: x[mask])(X)  # Another tensor may take its place in the next call.
    with pytest.raises(xf.errors.UnsupportedOpError, match=match):
        xf.jit(lambda x, m: x[m])(X, mask)
    with pytest.raises(xf.errors.UnsupportedOpError, match=match):
        xf.jit(lambda x, n: x.repeat_interleave(n, 0))(X, torch.tensor([1, 2, 0]))


SPACES: dict[str, Callable[[Tensor], Tensor]] = {
    "linspace": lambda a: torch.linspace(0, a, 5),
    "linspace, reversed": lambda a: torch.linspace(a, 0.5, 5),
    "linspace of integers": lambda a: torch.linspace(0, a, 4, dtype=torch.int32),
    "logspace": lambda a: torch.logspace(0, a, 5),
    "logspace, reversed": lambda a: torch.logspace(a, 0, 5, base=2),
    "logspace of integers": lambda a: torch.logspace(0, a, 3, dtype=torch.int64),
}


@pytest.mark.parametrize("name", SPACES)
def test_space_between_a_number_and_a_traced_value(name: str) -> None:
    fun, end = SPACES[name], torch.tensor(2.0)
    torch.testing.assert_close(xf.jit(fun)(end).cpu(), fun(end))
    if "integers" not in name:
        step = 1e-3
        slope = (fun(end + step) - fun(end - step)) / (2 * step)
        torch.testing.assert_close(xf.jacfwd(fun)(end).cpu(), slope, rtol=1e-2, atol=1e-2)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "@ of vectors": lambda x, y: x[0] @ y[0],
    "@ of matrices": lambda x, y: x @ y.T,
    "@ of batches": lambda x, y: x[None] @ y.T[None],
    "@ of a vector": lambda x, y: x @ y[0],
    "mm": lambda x, y: torch.mm(x, y.T),
    "addmm": lambda x, y: torch.addmm(x[:, :3], x, y.T),
    "linear": torch.nn.functional.linear,
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "tensordot": lambda x, y: torch.tensordot(x, y, dims=([1], [1])),  # pyright: ignore[reportArgumentType],
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_products_of_different_dtypes_are_refused_as_in_torch(
    name: str, dtype: torch.dtype
) -> None:
    fun, other = PRODUCTS[name], X.to(dtype)
    with pytest.raises(RuntimeError, match=r"dtype|scalar type") as of_torch:
        fun(X, other)
    with pytest.raises(RuntimeError, match=r"dtype|scalar type") as caught:
        xf.jit(fun)(X, other)
    assert type(caught.value) is type(of_torch.value)
    said = "\n".join(caught.value.__notes__)
    assert "convert one of them" in said
    assert "test_constant_data.py" in said
    torch.testing.assert_close(xf.jit(fun)(X, X).cpu(), fun(X, X))


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # of NumPy about torch
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_comparison_with_an_array_of_numpy(dtype: type) -> None:
    array = X.numpy().astype(dtype)
    array[1] += 1
    same = torch.from_numpy(array) == X
    assert xf.jit(lambda x: x == array)(X).tolist() == same.tolist()
