"""Further distributions of `xf.random`, against the draws that `tests.record` kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from tests.record.distributions import ARRAYS
from xfunc import random as xr

RECORDED = dict(np.load(Path(__file__).parents[1] / "data" / "distributions.npz"))
ROW, COV = torch.tensor(ARRAYS["row"]), torch.tensor(ARRAYS["cov"])
NAMES: dict[str, Any] = {n: getattr(xr, n) for n in vars(xr) if not n.startswith("_")}
NAMES |= {"vmap": xf.vmap, "grad": xf.grad, "jvp": xf.jvp, "arange": torch.arange}
NAMES |= {"sin": torch.sin, "i8": torch.int8}
NAMES |= {"f32": torch.float32, "f64": torch.float64, "table": torch.arange(12).reshape(3, 4)}
NAMES |= {k: torch.tensor(v) for k, v in ARRAYS.items()}
WIDE = NAMES | {k: torch.tensor(v, dtype=torch.float64) for k, v in ARRAYS.items()}

# What is drawn without rounding: the numbers are JAX's to the last bit.
EXACT = ("choice", "rademacher", "poisson", "geometric", "binomial", "multinomial")


def evaluated(call: str) -> torch.Tensor:
    return eval(call, WIDE if "f64" in call else NAMES)


@pytest.mark.sample(64, seed=0)
@pytest.mark.parametrize("call", RECORDED)
def test_distributions_match_jax(call: str) -> None:
    want, got = torch.from_numpy(RECORDED[call]), evaluated(call).cpu()
    if "choice" in call:
        want = want.long()
    assert got.dtype == want.dtype
    if any(name in call for name in EXACT):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    elif want.dtype == torch.float64:
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
    else:  # The tail of a Cauchy number is steep; a logarithm near 1 is, too, as in normal numbers.
        rtol = 1e-4 if "cauchy" in call else 1e-5 if call.startswith("gamma(") else 3e-6
        torch.testing.assert_close(got, want, rtol=rtol, atol=2e-6)


IN_JIT = [
    "weibull_min(key(1), 2.0, 1.5, (40,), f32)",
    "multivariate_normal(key(1), row, cov, None, f32)",
    "beta(key(4), 0.5, 2.0, (20,), f32)",
    "ball(key(1), 3, 3.0, (20,), f64)",
    "orthogonal(key(3), 2, (2,), f64, 4)",
    "poisson(key(8), row * 10, (20, 3), i8)",
    "binomial(key(10), row * 20, 0.8, (9, 3), f64)",
    "multinomial(key(11), row * 100, cov / 3.5, dtype=f32)",
]


@pytest.mark.sample(4, seed=0)
@pytest.mark.parametrize("call", IN_JIT)
def test_distributions_inside_jit(call: str) -> None:
    torch.testing.assert_close(xf.jit(lambda: evaluated(call))(), evaluated(call))


@pytest.mark.parametrize("method", ["eigh", "svd"])
def test_multivariate_normal_methods(method: str) -> None:
    drawn = xr.multivariate_normal(xr.key(0), ROW, COV, (4000,), method=method).cpu()
    torch.testing.assert_close(drawn.mean(0), ROW, rtol=0, atol=0.15)
    torch.testing.assert_close(drawn.T.cov(), COV, rtol=0, atol=0.25)


def test_rayleigh_gradient_by_scale() -> None:
    def total(scale):
        return xr.rayleigh(xr.key(1), scale, (5,)).sum()

    want = total(torch.tensor(1.0))
    torch.testing.assert_close(xf.grad(total)(2.0), want)


def test_gamma_derivative_by_shape_parameter() -> None:
    a = torch.tensor([0.3, 2.0, 9.0, 60.0], dtype=torch.float64)
    x, slope = xf.jvp(lambda a: xr.gamma(xr.key(3), a, (4,)).double(), (a,), (torch.ones_like(a),))
    x, slope = x.cpu(), slope.cpu()
    step = 1e-5
    along = (torch.special.gammainc(a + step, x) - torch.special.gammainc(a - step, x)) / (2 * step)
    across = torch.exp((a - 1) * x.log() - x - a.lgamma())
    torch.testing.assert_close(slope, -along / across, rtol=2e-4, atol=0)


def test_gamma_second_gradient_is_refused() -> None:
    def second(a):
        return xf.grad(xf.grad(lambda a: xr.gamma(xr.key(1), a, (5,)).sum()))(a)

    with pytest.raises(xf.errors.UnsupportedOpError, match="while_loop"):
        second(2.0)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        ("choice(key(0), 3, (4,), False)", ValueError, "cannot draw 4 of 3 without replacement"),
        ("choice(key(0), 0, (4,))", ValueError, "nothing to draw from"),
        ("choice(key(0), 1.5)", TypeError, "choice was given 1.5"),
        ("choice(key(0), 3, (), True, row[:2])", ValueError, r"p as torch.float32 of .*\(2,\)"),
        ("gamma(3, 1.0)", TypeError, "gamma was given 3 .*no key"),
        ("gamma(key(0), row, (2,))", ValueError, r"gamma has shape=\(2,\)"),
        ("exponential(key(0), (2,), vmap)", TypeError, "exponential was given the dtype"),
        ("rademacher(key(0), (), table.to(f32).bool().dtype)", TypeError, "give a signed dtype"),
        ("f(key(0), row, row[:2])", ValueError, "f was given"),
        ("ball(key(0), -1)", TypeError, r"ball was given the shape \(-1,\)"),
        ("orthogonal(key(0), 2.5)", TypeError, "orthogonal was given"),
        ("poisson(key(0), 1.0, (), f32)", TypeError, "poisson was given the dtype"),
        ("geometric(key(0), row, (2,))", ValueError, r"geometric has shape=\(2,\)"),
        ("binomial(key(0), 2.0, 0.5, (), i8)", TypeError, "binomial was given the dtype"),
        ("multinomial(key(0), row, row)", ValueError, r"multinomial has shape=\(\)"),
        ("multinomial(key(0), 2.0, 0.5)", ValueError, "give an axis of them"),
        ("multivariate_normal(key(0), row, row)", ValueError, r"covariance of the shape \(3,\)"),
        ("multivariate_normal(key(0), row, cov, method='lu')", ValueError, "method='lu'"),
    ],
)
def test_distributions_errors(call: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        eval(call, NAMES)
