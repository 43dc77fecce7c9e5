"""Operands of different dtypes: results have the dtypes of eager torch, in name and in fact."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.torchlib.promotion import result_type

HALF = torch.tensor([1.5, 2.0]).bfloat16()
INTS = torch.tensor([1, 2], dtype=torch.int32)
OPERANDS = {
    "bfloat16, float32 scalar": (HALF, torch.tensor(1.25)),
    "float32 scalar, bfloat16": (torch.tensor(1.25), HALF),
    "int32, float32 scalar": (INTS, torch.tensor(1.5)),
    "int32, int64 scalar": (INTS, torch.tensor(2)),
    "int64 scalar, int32": (torch.tensor(2), INTS),
    "bfloat16, int32": (HALF, INTS),
    "int8, int32": (INTS.to(torch.int8), INTS),
    "bfloat16, float32": (HALF, torch.tensor([1.25, 2.5])),
    "int32, int64": (INTS, torch.tensor([3, 1])),
    "bool, int64 scalar": (INTS > 1, torch.tensor(2)),
    "scalars": (torch.tensor(1.25).bfloat16(), torch.tensor(3)),
}
ALL = (
    "add sub subtract rsub mul div pow maximum minimum max min atan2 arctan2 remainder fmod xlogy "
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift clamp eq lt "
    "floor_divide"
).split()
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in ALL},
    "where": lambda x, y: torch.where(torch.tensor([True, False]), x, y),
    "Tensor.where": lambda x, y: x.where(torch.tensor([True, False]), y),
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x ** y": lambda x, y: x**y,
    "alpha": lambda x, y: torch.add(x, y, alpha=2),
    "other=": lambda x, y: torch.sub(x, other=y),
    "max=": lambda x, y: torch.clamp(x, max=y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    "add_": lambda x, y: x.clone().add_(y),
    "sub_": lambda x, y: x.clone().sub_(y),
    "two steps": lambda x, y: torch.stack([x + y, x + y]).sum(0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_as_in_eager_torch(name: str) -> None:
    operation = OPERATIONS[name]

    def every(operands: dict[str, Any]) -> dict[str, Any]:
        return {kind: operation(x, y) for kind, (x, y) in operands.items()}

    allowed = {}
    for kind, (x, y) in OPERANDS.items():
        try:
            operation(x, y)
        except (RuntimeError, NotImplementedError, IndexError):  # Eager torch refuses.
            continue
        allowed[kind] = (x, y)
    assert allowed
    expected = every(allowed)
    said = xf.eval_shape(every, allowed)
    got = xf.device_get(xf.jit(every)(allowed))
    for kind, want in expected.items():
        assert (said[kind].dtype, got[kind].dtype) == (want.dtype, want.dtype), kind
        torch.testing.assert_close(got[kind], want, rtol=2e-2, atol=1e-2, msg=kind)


def test_under_transforms() -> None:
    scale = torch.tensor(0.5)
    grads = xf.grad(lambda x: (x + scale).float().sum())(HALF)
    assert grads.dtype == torch.bfloat16
    assert xf.vmap(lambda x: x + scale)(HALF).dtype == torch.float32  # Two scalars, as in torch.
    carry, _ = xf.scan(lambda c, x: (c + x, None), HALF, torch.ones(3))
    assert carry.dtype == torch.bfloat16
    assert carry.tolist() == [4.5, 5.0]


def test_result_type_of_many() -> None:
    scalar, half, whole = torch.tensor(1.0), HALF, INTS
    assert result_type([half, scalar]) == torch.bfloat16
    assert result_type([whole, scalar]) == torch.float32
    assert result_type([whole, torch.tensor(2), half]) == torch.bfloat16
    assert result_type([scalar, torch.tensor(1.0, dtype=torch.float64)]) == torch.float64
    assert result_type([whole, torch.tensor(1j)]) == torch.complex64


Tensor = torch.Tensor
COUNTED: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    "sum": lambda x, d: x.sum(dtype=d),
    "sum of rows": lambda x, d: torch.sum(x, 1, dtype=d),
    "sum of input": lambda x, d: torch.sum(input=x, dtype=d),
    "prod": lambda x, d: x.prod(dtype=d),
    "prod of rows": lambda x, d: torch.prod(x, 1, dtype=d),
    "cumsum": lambda x, d: x.cumsum(1, dtype=d if d is not torch.bool else torch.int16),
    "cumprod": lambda x, d: torch.cumprod(x, 1, dtype=d if d is not torch.bool else torch.int16),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("name", COUNTED)
def test_what_is_counted_is_converted_first(name: str, dtype: torch.dtype) -> None:
    """And has no derivative: torch's formulas fail."""
    x = torch.tensor([[-1.5, 2.75, 0.5], [0.75, 3.9, -2.2]])
    reduce = COUNTED[name]

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        found = reduce(x, dtype)
        return (x * found.sum()).sum(), found

    want, counted = f(x)
    value, grad = xf.value_and_grad(f, has_aux=True)(x)
    torch.testing.assert_close(xf.device_get(value), (want, counted))
    torch.testing.assert_close(grad.cpu(), counted.sum().float().expand(2, 3))
    dot = xf.jvp(lambda x: f(x)[0], (x,), (torch.ones(2, 3),))[1]
    torch.testing.assert_close(dot.cpu(), counted.sum() * 6.0)


PUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y[:1], 0, 1, 2),
    "select_scatter": lambda x, y: torch.select_scatter(x, y[0], 0, 1),
    "diagonal_scatter": lambda x, y: torch.diagonal_scatter(x, y.diagonal()),
    "as_strided_scatter": lambda x, y: torch.as_strided_scatter(x, y[0], (3,), (2,)),
    "masked_fill": lambda x, y: torch.masked_fill(x, x == 1, y[0, 0].to(x.dtype)),
}


@pytest.mark.parametrize("name", PUT)
@pytest.mark.parametrize(
    ("into", "dtype"),
    [
        (torch.float32, torch.bool),
        (torch.float16, torch.float32),
        (torch.int32, torch.float32),
        (torch.float32, torch.bfloat16),
    ],
)
def test_what_is_put_into_a_tensor_takes_its_dtype(
    name: str, into: torch.dtype, dtype: torch.dtype
) -> None:
    x, y = torch.arange(9).reshape(3, 3).to(into), (torch.arange(9).reshape(3, 3) / 4).to(dtype)
    want = PUT[name](x, y)
    for found in (xf.jit(PUT[name])(x, y), xf.vmap(PUT[name])(x[None], y[None])[0]):
        assert found.dtype == want.dtype
        assert torch.equal(found.cpu(), want)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize(
    "compute",
    [
        lambda x, n: x // n,
        lambda x, n: n // x,
        lambda x, n: x % n,
        lambda x, n: n % x,
        lambda x, n: x - n,
        lambda x, n: n - x,
        lambda x, n: torch.remainder(x, -n),
        lambda x, n: torch.fmod(x, n),
        lambda x, n: torch.div(x, n, rounding_mode="trunc"),
        lambda x, n: torch.div(x, other=n, rounding_mode="floor"),
        lambda x, n: torch.div(x, n),
        lambda x, n: (x == n, x > n, torch.le(x, n), x.ne(n)),
        lambda x, n: x.clone().floor_divide_(n),
    ],
)
def test_numbers_that_a_narrow_integer_does_not_hold_wrap(compute: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([100, 3, 7, 1], dtype=dtype)
    for n in (1_000_000, 70_000, 300, 2**33 + 5):
        got = xf.device_get(xf.jit(lambda x, n=n: compute(x, n))(x))
        want = compute(x, n)
        if not isinstance(want, tuple):
            got, want = (got,), (want,)
        for g, w in zip(got, want, strict=True):
            assert g.dtype == w.dtype
            assert torch.equal(g, w)
