"""Fills and sizes where torch reads a number, which may be traced; quantiles and diagonals."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

X = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0], [2.0, 2.5, 1.5], [0.1, 0.2, float("nan")]])
FILLS: dict[str, Callable[..., Any]] = {
    "full": lambda x, s: torch.full((2, 3), s),
    "full of keywords": lambda x, s: torch.full(size=(2,), fill_value=s, dtype=torch.int64),
    "new_full": lambda x, s: x.new_full((2,), s),
    "new_full of another dtype": lambda x, s: x.new_full((2,), s, dtype=torch.float64),
    "full_like": lambda x, s: torch.full_like(x, s),
    "fill": torch.fill,
    "fill_": lambda x, s: torch.zeros_like(x).fill_(s),
    "a view": lambda x, s: (y := torch.zeros_like(x), y[1].fill_(s))[0],
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "masked_fill_": lambda x, s: x.clone().masked_fill_(x > 0, s),
    "index_fill": lambda x, s: x.index_fill(0, torch.tensor([1]), s),
    "x[mask] = s": lambda x, s: (y := x.clone(), y.__setitem__(x > 0, s))[0],
    "torch.tensor": lambda x, s: torch.tensor(s),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", FILLS)
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_fill_with_traced_number(name: str, dtype: torch.dtype) -> None:
    f, s = FILLS[name], torch.tensor(2.5).to(dtype)
    torch.testing.assert_close(xf.device_get(xf.jit(f)(X, s)), f(X, s), equal_nan=True)
    many = torch.stack([s, s + 1])
    found = xf.vmap(f, in_axes=(None, 0))(X, many)
    expected = xf.tree.map(lambda *each: torch.stack(each), *(f(X, each) for each in many))
    torch.testing.assert_close(xf.device_get(found), expected, equal_nan=True)


def test_fill_derivatives_by_the_number() -> None:
    def f(s: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(3).fill_(s) * torch.arange(3.0) + torch.fill(torch.ones(3), s)
        return y.masked_fill(y > 2, s).sum() + torch.index_fill(y, 0, torch.tensor([1]), s).sum()

    s, one = torch.tensor(2.0), torch.tensor(1.0)
    assert xf.grad(f)(s).item() == torch.func.grad(f)(s).item() == 8.0
    assert xf.jvp(f, (s,), (one,))[1].item() == 8.0
    with pytest.raises(TypeError, match="must be Number, not Tensor"):  # as torch has it
        xf.grad(lambda s: torch.full((3,), s).sum())(s)


def test_fill_full_and_tensor_errors() -> None:
    with pytest.raises(RuntimeError, match="only supports 0-dimension value tensor"):
        xf.jit(torch.fill)(X, torch.ones(1))
    with pytest.raises(xf.errors.ConcretizationError, match=r"torch\.full reads a traced value"):
        xf.jit(lambda n: torch.full((n,), 1.0))(torch.tensor(2))
    with pytest.raises(xf.errors.ConcretizationError, match=r"traced values .* Python sequence"):
        xf.jit(lambda s: torch.tensor([s, s]))(torch.tensor(2.0))


SPLITS: dict[str, Callable[..., Any]] = {
    "places": lambda x: torch.tensor_split(x, torch.tensor([1, 3])),
    "sections": lambda x: torch.tensor_split(x, torch.tensor(3)),
    "dim": lambda x: x.tensor_split(torch.tensor([1]), dim=1),
    "reshape": lambda x: x.reshape(torch.tensor(2), -1),
    "arange": lambda x: torch.arange(torch.tensor(3)),  # pyright: ignore[reportCallIssue, reportArgumentType]
}


@pytest.mark.parametrize("name", SPLITS)
def test_constant_tensor_as_size(name: str) -> None:
    f = SPLITS[name]
    torch.testing.assert_close(xf.device_get(xf.jit(f)(X)), f(X), equal_nan=True)


def test_tensor_split_at_traced_indices_is_refused() -> None:
    with pytest.raises(xf.errors.ConcretizationError, match="tensor_split reads a traced value"):
        xf.jit(torch.tensor_split)(X, torch.tensor([1, 2]))


INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")
QUANTILES: list[tuple[Any, ...]] = [
    (0.3,),
    (0.3, 0),
    (torch.tensor([0.2, 0.9]), 1),
    (0.5, -1, True),
]
QUANTILES += [(torch.tensor([0.2, 0.9]), 0, True), (0.7, None, True), (torch.tensor(0.4), 0)]


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("func", [torch.quantile, torch.nanquantile])
def test_quantile_interpolations_and_derivatives(func: Callable[..., Any]) -> None:
    every = [(*(args), kind) for args in QUANTILES for kind in INTERPOLATIONS]

    def f(x: torch.Tensor) -> list[Any]:
        return [func(x, *args, interpolation=kind) for *args, kind in every]

    def total(x: torch.Tensor) -> Any:
        return sum((out.nan_to_num(0) * (1 + i)).sum() for i, out in enumerate(f(x)))

    torch.testing.assert_close(xf.device_get(xf.jit(f)(X)), f(X), equal_nan=True)
    torch.testing.assert_close(xf.device_get(xf.grad(total)(X)), torch.func.grad(total)(X))
    tangent = torch.arange(12.0).reshape(4, 3)
    found = xf.jvp(f, (X,), (tangent,))[1]
    expected = torch.func.jvp(f, (X,), (tangent,))[1]
    torch.testing.assert_close(xf.device_get(found), expected, equal_nan=True)
    with pytest.raises(RuntimeError, match="must be in the range"):
        xf.jit(lambda x: func(x, 1.5))(X)


def test_bincount_error_suggests_index_add() -> None:
    x = torch.tensor([1, 2, 2, 4])
    with pytest.raises(xf.errors.UnsupportedOpError, match="minlength is no upper bound"):
        xf.jit(lambda x: torch.bincount(x, minlength=5))(x)

    def count(x: torch.Tensor) -> torch.Tensor:  # what the message says
        return torch.zeros(5, dtype=torch.int64).index_add(0, x, torch.ones_like(x))

    torch.testing.assert_close(xf.device_get(xf.jit(count)(x)), torch.bincount(x, minlength=5))
    assert xf.jit(count)(x + 3).tolist() == [0, 0, 0, 0, 1]


def _part(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[:, 1:].fill_diagonal_(5.0)
    return y


def _rows_of_columns(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y.t()[1:].fill_diagonal_(5.0, wrap=True)
    return y


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (7, 3), (4, 1), (1, 1), (3, 3, 3)])
@pytest.mark.parametrize(
    "fill",
    [
        lambda x: (x * 1).fill_diagonal_(5.0),
        lambda x: (x * 1).fill_diagonal_(fill_value=5, wrap=True),
        lambda x: (x > 3).fill_diagonal_(True),
        _part,
        _rows_of_columns,
    ],
)
def test_fill_diagonal_matches_eager_torch(fill: Any, shape: tuple[int, ...]) -> None:
    """torch 2.9 does it with strides and an offset, which a view or an example has none of."""
    x = torch.arange(float(math.prod(shape))).reshape(shape)
    if len(shape) > 2 and fill in (_part, _rows_of_columns):
        x = x[0]
    want = fill(x)
    assert torch.equal(xf.jit(fill)(x).cpu(), want)
    assert torch.equal(xf.vmap(fill, in_axes=-1)(torch.stack([x, x], -1)).cpu()[1], want)
    if want.dtype is torch.float32:
        ones = torch.ones_like(x)
        got = xf.vmap(lambda x: xf.jvp(fill, (x,), (ones,))[1])(x[None])
        assert torch.equal(got.cpu()[0], torch.func.jvp(fill, (x,), (ones,))[1])


def test_fill_diagonal_of_wrong_shape_raises() -> None:
    with pytest.raises(RuntimeError, match="dimensions must larger than 1"):
        xf.jit(lambda x: (x * 1).fill_diagonal_(1.0))(torch.ones(3))
    with pytest.raises(RuntimeError, match="equal length"):
        xf.jit(lambda x: (x * 1).fill_diagonal_(1.0))(torch.ones(3, 2, 3))
