"""tanh, erf, lgamma, zeta and polygamma at their limits, zeros and poles, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INF, NAN = float("inf"), float("nan")
LARGE = torch.tensor([20.0, 50.0, 100.0, 6e4, torch.inf])
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def same(found: Any, expected: Any, rtol: float | None = None, atol: float | None = None) -> None:
    torch.testing.assert_close(xf.device_get(found), expected, rtol=rtol, atol=atol, equal_nan=True)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "erf": torch.erf,
    "what tanh leaves": lambda x: (1 - torch.tanh(x)) * 2**24,
    "what erf leaves": lambda x: (1 - torch.erf(x)) * 2**24,
    "slope of tanh": lambda x: xf.grad(lambda x: torch.tanh(x).sum())(x) * 2**24,
    "tanh in a loop": lambda x: xf.fori_loop(0, 2, lambda i, c: torch.tanh(c * 100), x),
    "tanh in a branch": lambda x: xf.cond(x[0] > 0, torch.tanh, torch.sin, x),
}
EXPECTED = dict.fromkeys(FUNCTIONS, lambda x: torch.sign(x)) | {
    "what tanh leaves": lambda x: (x < 0).to(x.dtype) * 2**25,
    "what erf leaves": lambda x: (x < 0).to(x.dtype) * 2**25,
    "slope of tanh": torch.zeros_like,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tanh_and_erf_far_from_zero(dtype: torch.dtype) -> None:
    x = torch.cat([LARGE, -LARGE]).to(dtype)
    found = xf.jit(lambda x: {name: f(x) for name, f in FUNCTIONS.items()})(x)
    expected = {name: f(x) for name, f in EXPECTED.items()}
    torch.testing.assert_close(xf.device_get(found), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tanh_erf_and_ndtr_near_their_limits(dtype: torch.dtype) -> None:
    x = torch.linspace(-20, 20, 801, dtype=torch.float64).to(dtype)
    x = torch.cat([x, x.new_tensor([torch.nan, -0.0, 1e-3])])
    names = ("tanh", "erf")
    found = xf.device_get(xf.jit(lambda x: {n: FUNCTIONS[n](x) for n in names})(x))
    eps = torch.finfo(dtype).eps
    for name in names:
        expected = FUNCTIONS[name](x.double())
        torch.testing.assert_close(
            found[name].double(), expected, rtol=4 * eps, atol=0, equal_nan=True
        )
    x = x[x.abs() < 9] if dtype is torch.float64 else x[x.abs() < 4]
    found = xf.device_get(xf.jit(torch.special.ndtr)(x)).double()
    expected = 0.5 * torch.erfc(-x.double() * 0.5**0.5)
    torch.testing.assert_close(found, expected, rtol=60 * eps, atol=0)
    assert xf.jit(torch.special.ndtr)(torch.tensor([-torch.inf, torch.inf])).tolist() == [0, 1]


def test_lgamma_is_zero_at_one_and_two() -> None:
    for dtype in DTYPES:
        assert xf.jit(torch.lgamma)(torch.tensor([1.0, 2.0], dtype=dtype)).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, F32, F64], ids=str)
def test_zeta_at_poles_and_edges(dtype: torch.dtype) -> None:
    numbers = torch.tensor([-3, -2, -1.5, -1, 0, 0.5, 1, 2, 2.5, 3, 20])
    edges = [numbers, torch.tensor([INF, NAN])] if dtype.is_floating_point else [numbers]
    x = torch.cat(edges).to(dtype)
    pairs = torch.meshgrid(x, x, indexing="ij")
    same(xf.jit(torch.special.zeta)(*pairs), torch.special.zeta(*pairs))


@pytest.mark.sample(3, seed=0)
@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("dtype", [torch.int64, F32, F64, BF16, F16], ids=str)
def test_polygamma_at_poles_and_edges(order: int, dtype: torch.dtype) -> None:
    numbers = torch.tensor([-4, -2, -1.25, -1, -0.5, -0.0, 0, 0.25, 0.5, 1, 2, 3.5, 30])
    edges = [numbers, torch.tensor([INF, NAN])] if dtype.is_floating_point else [numbers]
    x = torch.cat(edges).to(dtype)
    digits = {BF16: 2**-7, F16: 2**-10}.get(dtype, 1e-5)
    f = lambda x: torch.polygamma(order, x)  # noqa: E731
    same(xf.jit(f)(x), f(x), rtol=digits, atol=1e-6)
