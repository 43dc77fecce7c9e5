"""Indexing with traced numbers gives what Python numbers give in eager torch."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick

X = torch.arange(24.0).reshape(2, 3, 4)
ROWS = torch.tensor([1, 0])
READS: dict[str, Callable[..., Any]] = {
    "x[i]": lambda x, i, j: x[i],
    "x[i, j]": lambda x, i, j: x[i, j],
    "x[:, j]": lambda x, i, j: x[:, j],
    "x[i, :, j]": lambda x, i, j: x[i, :, j],
    "x[..., j]": lambda x, i, j: x[..., j],
    "x[i, ..., j]": lambda x, i, j: x[i, ..., j],
    "x[None, i, 1:]": lambda x, i, j: x[None, i, 1:],
    "x[i, None, :, j]": lambda x, i, j: x[i, None, :, j],
    "x[1, j]": lambda x, i, j: x[1, j],
    "x[i, :, rows]": lambda x, i, j: x[i, :, ROWS.to(x.device)],
    "x[rows, j]": lambda x, i, j: x[ROWS.to(x.device), j],
    "x[i][j]": lambda x, i, j: x[i][j],
    "x[[i, 1], (j, j)]": lambda x, i, j: x[[i, 1], (j, j)],
    "x[:, [i, j]]": lambda x, i, j: x[:, [i, j]],
    "x.narrow(2, i, 2)": lambda x, i, j: x.narrow(2, i, 2),
    "torch.narrow(x, -1, j, 1)": lambda x, i, j: torch.narrow(x, -1, j, 1),
}


def _write(put: Callable[..., None]) -> Callable[..., Any]:
    def run(x: torch.Tensor, i: Any, j: Any) -> torch.Tensor:
        y = x.clone()
        put(y, i, j)
        return y

    return run


def _set(index: Callable[..., Any], value: Any) -> Callable[..., Any]:
    return _write(lambda y, i, j: y.__setitem__(index(i, j), value))


WRITES = {
    "y[i] = 1": _set(lambda i, j: i, 1.0),
    "y[i, j] = row": _set(lambda i, j: (i, j), torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "y[i, :, j] = 1": _set(lambda i, j: (i, slice(None), j), 1.0),
    "y[:, j, 1:] = 1": _set(lambda i, j: (slice(None), j, slice(1, None)), 1.0),
    "y[..., j] = column": _set(lambda i, j: (..., j), torch.ones(2, 3)),
    "y[(i, i), :, [j, 0]] = 1": _set(lambda i, j: ((i, i), slice(None), [j, 0]), 1.0),
    "y[i] += 1": _write(lambda y, i, j: y.__setitem__(i, y[i] + 1)),
}


@pytest.mark.parametrize(("i", "j"), [(0, 2), (1, 1), (-1, -2)])
@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_traced_index_matches_python_numbers(name: str, i: int, j: int) -> None:
    if "narrow" in name:
        i, j = abs(i), abs(j)
    run = READS.get(name) or WRITES[name]
    f = xf.jit(run)
    torch.testing.assert_close(f(X, i, j).cpu(), run(X, i, j))
    made = f.cache_info().traces
    f(X, 0, 0)
    assert f.cache_info().traces == made  # The numbers are arguments of the program.


def test_traced_index_out_of_bounds_clamps_or_drops() -> None:
    x = torch.arange(4.0)
    read = xf.jit(lambda x, i: x[i])
    assert [read(x, i).item() for i in (3, 4, 9, -9)] == [3.0, 3.0, 3.0, 0.0]
    put = xf.jit(_write(lambda y, i, j: y.__setitem__(i, 9.0)))
    assert put(x, 7, 0).tolist() == x.tolist()
    window = xf.jit(lambda x, i: x.narrow(0, i, 2))
    assert [window(x, i).tolist() for i in (0, 3, 9)] == [[0.0, 1.0], [2.0, 3.0], [2.0, 3.0]]


def test_traced_index_in_grad_vmap_and_scan() -> None:
    x = torch.arange(4.0)
    assert xf.grad(lambda x, i: x[i] ** 2)(x, 3).tolist() == [0.0, 0.0, 0.0, 6.0]
    assert xf.vmap(lambda i: x[i])(torch.tensor([2, 0])).tolist() == [2.0, 0.0]

    def body(c: Any, _: None) -> Any:
        i, total = c
        return (i + 1, total + x[i]), x[i]

    (_, total), seen = xf.scan(body, (0, 0.0), length=4)
    assert total.item() == 6.0
    assert seen.tolist() == x.tolist()

    def cumulative(x: torch.Tensor) -> torch.Tensor:
        def step(c: Any, _: None) -> Any:
            i, out = c
            out = out.clone()
            out[i] = x[i] + torch.where(i > 0, out[i - 1], 0.0)
            return (i + 1, out), None

        return xf.scan(step, (0, torch.zeros(4)), length=4)[0][1]

    assert cumulative(x).tolist() == x.cumsum(0).tolist()
    assert xf.grad(lambda x: cumulative(x).sum())(x).tolist() == [4.0, 3.0, 2.0, 1.0]


ROWS = torch.tensor([1, 1, 0], dtype=torch.int32)
MIXED: dict[str, tuple[Any, ...]] = {
    "two dtypes": (ROWS, torch.tensor([[0], [2]])),
    "three": (torch.tensor([1]), ROWS, ROWS.to(torch.int32) + 1),
    "apart": (ROWS, slice(None), torch.tensor([0, 1, 2])),
    "a list": ([True, False], slice(None), ROWS[:1]),
}


@pytest.mark.parametrize("name", MIXED)
def test_index_tensors_of_several_dtypes(name: str) -> None:
    x, at = torch.arange(24.0).reshape(2, 3, 4), MIXED[name]

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        y[at] = x[at] + 100
        return x[at], y

    want = f(x)
    for found in (xf.jit(f)(x), xf.jvp(f, (x,), (x,))[0]):
        torch.testing.assert_close(xf.device_get(found), want)


@pytest.mark.filterwarnings("ignore:Casting complex values")  # of NumPy, in eager torch
@pytest.mark.parametrize("number", [1, -1.9, True, 0])
@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "int8", "uint8", "bool"])
def test_index_that_is_an_array_of_no_dimensions(dtype: str, number: float) -> None:
    """Eager torch cuts off digits, and takes bytes for masks."""
    at = np.array(number).astype(dtype)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        y[:, at] = 7.0
        return x[at], x[None, at], x[:, [1], at], y

    torch.testing.assert_close(xf.device_get(xf.jit(f)(X)), f(X))


def test_index_put_of_other_dtype_raises() -> None:
    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3).index_put((at,), x)

    x = torch.ones(1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="source and destination dtypes match"):
        xf.jit(f)(x, torch.tensor([1]))
    found = xf.jit(f)(torch.ones(0, dtype=torch.float64), torch.ones(0, dtype=torch.int64))
    assert not found.any()


def test_linearize_with_boolean_list_index() -> None:
    """torch makes a tensor of a list of truth values, which is no input of the program."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[[True, False, True],] *= 2
        return y

    x = torch.ones(3)
    assert xf.linearize(f, x)[1](x).tolist() == [2.0, 1.0, 2.0]


def test_mask_assignment_of_scalar_of_other_dtype() -> None:
    def f(x: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[None, [True, False]] = value
        return x

    x, value = torch.ones(2, 3, dtype=torch.int64), torch.tensor(2.75)
    assert torch.equal(xf.jit(f)(x, value).cpu(), f(x, value))


TO_PARTS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "zero_": lambda x, i: x[i].zero_(),
    "a slice of it": lambda x, i: x[i, 1:].fill_(7.0),
    "of the second dimension": lambda x, i: x[:, i].mul_(2),
    "an ellipsis": lambda x, i: x[..., i].neg_(),
    "a view of it": lambda x, i: x[i][1:].add_(5),
    "two numbers": lambda x, i: x[i, i].copy_(torch.tensor(3.0)),
    "one after the other": lambda x, i: x[i][i].fill_(9.0),
    "setitem": lambda x, i: x[i].__setitem__(0, -1.0),
    "out": lambda x, i: torch.sin(x[i], out=x[i]),
    "in place twice": lambda x, i: x[i].add_(1).mul_(3),
    "no view": lambda x, i: x[i, [0, 1]].zero_(),
}


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("transform", ["jit", "grad", "vmap", "scan"])
@pytest.mark.parametrize("name", TO_PARTS)
def test_view_at_traced_index_written_in_place(name: str, transform: str) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x * 2
        TO_PARTS[name](y, i)
        return y

    x, i = torch.arange(12.0).reshape(3, 4) + 1, torch.tensor(1)
    if transform == "grad" and name != "out":  # which torch does not differentiate
        want: Any = torch.func.grad(lambda x: (f(x, i) ** 2).sum())(x)
        found = xf.grad(lambda x, i: (f(x, i) ** 2).sum())(x, i)
    elif transform == "scan":
        want, found = f(f(x, i), i), xf.scan(lambda c, i: (f(c, i), None), x, i.expand(2))[0]
    elif transform == "vmap" and name == "a view of it":
        with pytest.raises(xf.errors.UnsupportedOpError, match=r"write to x itself: x\[i, 1:\]"):
            xf.vmap(f, in_axes=(0, None))(x[None], i)
        return
    elif transform == "vmap":
        want, found = f(x, i), xf.vmap(f, in_axes=(0, None))(x[None], i)[0]
    else:
        want, found = f(x, i), xf.jit(f)(x, i)
    torch.testing.assert_close(found.cpu(), want)


def test_view_of_argument_written_in_place_raises() -> None:
    with pytest.raises(xf.errors.PurityError, match="in place"):
        xf.jit(lambda x, i: x[i].zero_() + x.sum())(torch.ones(3, 3), torch.tensor(1))


@pytest.mark.parametrize(
    "index", [[True, False], torch.tensor([True, False]), torch.tensor([[True, False, True]] * 2)]
)
def test_mask_assignment_of_scalars_under_vmap(index: Any) -> None:
    x = torch.arange(6, dtype=torch.int32).reshape(2, 3)

    def put(value: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[index] = value
        return y

    values = torch.tensor([1.5, -2.5, 4.0])
    found = xf.device_get(xf.vmap(put)(values))
    assert torch.equal(found, torch.stack([put(v) for v in values]))


# name -> (the index of an assignment to an array of 2, 3 and 4, by masks; the shape of the values)
MASKED: dict[str, tuple[Callable[[list[torch.Tensor]], Any], tuple[int, ...]]] = {
    "rows": (lambda m: m[0], (4,)),
    "rows, with a dimension of 1": (lambda m: m[0], (1, 1, 4)),
    "elements": (lambda m: (m[0], slice(None)), (3, 4)),
    "columns": (lambda m: (slice(None), m[1]), (4,)),
    "columns, different rows": (lambda m: (slice(None), m[1]), (2, 1, 4)),
    "last": (lambda m: (..., m[2]), (1,)),
    "last, different rows": (lambda m: (..., m[2]), (3, 1)),
    "pairs": (lambda m: (m[0][:, None] & m[1],), (4,)),
}


@pytest.mark.parametrize("name", MASKED)
def test_assignment_of_the_same_values_wherever_a_mask_is_true(name: str) -> None:
    index, shape = MASKED[name]
    masks = [torch.arange(n) != 1 for n in (2, 3, 4)]
    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
    values = torch.arange(1.0, 1 + math.prod(shape)).reshape(shape)

    def put(x: torch.Tensor, values: torch.Tensor, masks: list[torch.Tensor]) -> torch.Tensor:
        x = x * 2
        x[index(masks)] = values * 3
        return x.square()

    want = put(x, values, masks)
    given = [t.clone().requires_grad_() for t in (x, values)]
    slopes = torch.autograd.grad(put(given[0], given[1], masks).sum(), given)
    tangent = (put(x, values * 1.5, masks) - put(x, values * 0.5, masks)) / 1.0  # of a square

    torch.testing.assert_close(xf.jit(put)(x, values, masks).cpu(), want)
    grad = xf.grad(lambda x, v, m: put(x, v, m).sum(), (0, 1))
    torch.testing.assert_close(xf.device_get(xf.jit(grad)(x, values, masks)), slopes)
    jvp = xf.jit(lambda v, m: xf.jvp(lambda v: put(x, v, m), (v,), (v,))[1])
    torch.testing.assert_close(jvp(values, masks).cpu(), tangent)
    batch = xf.jit(xf.vmap(put, (None, 0, None)))(x, torch.stack([values, values]), masks)
    torch.testing.assert_close(batch.cpu(), torch.stack([want, want]))


@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_of_index_put_by_a_traced_mask(accumulate: bool) -> None:
    def loss(x: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.index_put((mask,), values, accumulate).square().sum()

    x, values, mask = X.clone(), torch.arange(4.0), torch.arange(6).reshape(2, 3) % 4 > 0
    given = [t.clone().requires_grad_() for t in (x, values)]
    slopes = torch.autograd.grad(loss(given[0], given[1], mask), given)
    found = xf.jit(xf.grad(loss, (0, 1)))(x, values, mask)
    torch.testing.assert_close(xf.device_get(found), slopes)


@pytest.mark.parametrize("mask", [[True], [True, False], torch.tensor([True])], ids=str)
def test_write_by_mask_of_another_size_is_an_index_error(mask: Any) -> None:
    def write(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[mask,] = 1
        return y

    with pytest.raises(IndexError, match="shape of the mask"):
        write(torch.zeros(3))
    with pytest.raises(IndexError, match="shape of the mask"):
        xf.jit(write)(torch.zeros(3))


TWO = torch.tensor([1, 0])


def _put_rows(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[TWO] = values
    return x


@pytest.mark.parametrize(
    ("write", "shape"),
    [
        (_put_rows, (4,)),
        (_put_rows, (2, 2, 3)),
        (lambda x, y: x.index_put((TWO,), y), (3, 3)),
        (lambda x, y: x.index_put((TWO,), y), (1, 2, 3)),
        (lambda x, y: x.index_put((TWO, TWO), y, accumulate=True), (3,)),
        (lambda x, y: x.index_copy(0, TWO, y), (3, 3)),
        (lambda x, y: x.index_copy(0, TWO, y), (2, 4)),
        (lambda x, y: x.select_scatter(y, 0, 1), (4,)),
        (lambda x, y: x.select_scatter(y, 0, 1), (1,)),
        (lambda x, y: x.select_scatter(y, 0, 5), (3,)),
        (lambda x, y: x.diagonal_scatter(y), (4,)),
        (lambda x, y: x.diagonal_scatter(y), (1,)),
        (lambda x, y: x.slice_scatter(y, 0, 1, 3), (4, 3)),
        (lambda x, y: x.slice_scatter(y, 0, 1, 3), (1, 3)),
        (lambda x, y: x.slice_scatter(y, 0, 9, 12), (1, 3)),
        (lambda x, y: x.as_strided_scatter(y, (2,), (1,)), (1,)),
    ],
)
def test_values_of_another_shape_are_not_written(
    write: Callable[..., torch.Tensor], shape: tuple[int, ...]
) -> None:
    x, y = torch.zeros(5, 3), torch.ones(shape)
    said = r"(?i)shape|size|out of range"
    for run in (write, xf.jit(write)):
        with pytest.raises((RuntimeError, IndexError), match=said):
            run(x, y)
    with pytest.raises((RuntimeError, IndexError), match=said):
        xf.vmap(write)(x[None], y[None])
