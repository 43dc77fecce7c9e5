"""Functions of complex numbers are on the branch that torch takes, also where XLA simplifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

COMPLEX = pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
NUMBERS = torch.tensor([1 + 5j, 2 - 7j, 0.5 + 0.1j, -0.75 + 2j])

# What XLA's algebraic simplifier has rules for, which hold of real numbers.
COMPOSITIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "log of exp": lambda z: z.exp().log(),
    "log10 of exp": lambda z: z.exp().log10(),
    "log2 of a power of 2": lambda z: (2**z).log2(),
    "log of a power": lambda z: (z**z).log(),
    "log of a product of exps": lambda z: (z.exp() * z.flip(0).exp()).log(),
    "log of sqrt": lambda z: (z * z).sqrt().log(),
    "logsumexp of one": lambda z: z[:, None].logsumexp(1),
    "sqrt of square": lambda z: (z * z).sqrt(),
    "sqrt of a power": lambda z: (z**2).sqrt(),
    "sqrt of exp": lambda z: z.exp().sqrt(),
    "rsqrt of square": lambda z: (z * z).rsqrt(),
    "rsqrt of a power": lambda z: (z**-2).rsqrt(),
    "power of exp": lambda z: z.exp() ** 0.5,
    "power of a power": lambda z: (z**3) ** (1 / 3),
    "exp to a power": lambda z: z.exp() ** z,
}


@pytest.mark.sample(2, seed=0)
@COMPLEX
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_complex_compositions_are_not_simplified_as_real(name: str, dtype: torch.dtype) -> None:
    f, z = COMPOSITIONS[name], NUMBERS.to(dtype)
    torch.testing.assert_close(xf.device_get(xf.jit(f)(z)), f(z), rtol=1e-4, atol=1e-5)


def test_complex_log_of_exp_of_scalar_and_under_vmap() -> None:
    f, z = COMPOSITIONS["log of exp"], NUMBERS[0]
    torch.testing.assert_close(xf.device_get(xf.jit(f)(z)), f(z))
    torch.testing.assert_close(xf.device_get(xf.vmap(f)(NUMBERS)), f(NUMBERS))


PARTS = [0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 1.001, -3.0, 50.0, 1e5, -1e10, 1e18]
FUNCTIONS = """
    acos asin atan acosh asinh atanh log log10 log2 log1p expm1 sqrt rsqrt exp sin cos tan sinh cosh
    tanh square abs angle
""".split()


@pytest.mark.sample(3, seed=0)
@COMPLEX
@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_functions_at_branch_cuts_and_poles(name: str, dtype: torch.dtype) -> None:
    f = getattr(torch, name)
    z = torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=dtype)
    found, expected = xf.device_get(xf.jit(f)(z)), f(z)
    finite = [torch.view_as_real(x + 0j).isfinite().all(1) for x in (found, expected)]
    assert torch.equal(*finite)
    error = (found - expected).abs()[finite[0]]
    assert (error <= 2e-5 * expected.abs()[finite[0]]).all()


@COMPLEX
@pytest.mark.parametrize("f", [torch.sqrt, torch.rsqrt])
def test_complex_sqrt_and_rsqrt_with_signed_imaginary_zero(f: Any, dtype: torch.dtype) -> None:
    z = torch.tensor([complex(a, b) for a in (-3.0, 2.0) for b in (0.0, -0.0)], dtype=dtype)
    found, expected = xf.device_get(xf.jit(f)(z)), f(z)
    torch.testing.assert_close(found, expected)
    if f is torch.sqrt:  # torch's quotients have zeros of their own.
        assert torch.equal(found.imag.signbit(), expected.imag.signbit())
