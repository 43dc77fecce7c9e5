"""Functions are at their limits for large numbers, and exactly zero where torch's are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
LARGE = torch.tensor([20.0, 50.0, 100.0, 6e4, torch.inf])
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

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
def test_far_from_zero(dtype: torch.dtype) -> None:
    x = torch.cat([LARGE, -LARGE]).to(dtype)
    found = xf.jit(lambda x: {name: f(x) for name, f in FUNCTIONS.items()})(x)
    expected = {name: f(x) for name, f in EXPECTED.items()}
    torch.testing.assert_close(xf.device_get(found), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_around_the_limit(dtype: torch.dtype) -> None:
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


def test_the_logarithm_of_gamma_is_zero_at_one_and_two() -> None:
    for dtype in DTYPES:
        assert xf.jit(torch.lgamma)(torch.tensor([1.0, 2.0], dtype=dtype)).tolist() == [0, 0]
