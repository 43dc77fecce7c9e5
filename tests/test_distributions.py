"""Further distributions of `xf.random`, against the draws that `record_distributions` kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf
from xfunc import random as xr

RECORDED = dict(np.load(Path(__file__).parent / "data" / "distributions.npz"))
ROW = torch.tensor([0.5, 1.0, 4.0])
COV = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 3.0]])
NAMES: dict[str, Any] = {n: getattr(xr, n) for n in vars(xr) if not n.startswith("_")}
NAMES |= {"vmap": xf.vmap, "f32": torch.float32, "row": ROW, "cov": COV}
NAMES |= {"table": torch.arange(12).reshape(3, 4), "weights": torch.tensor([0.1, 0.4, 0.2, 0.3])}


@pytest.mark.parametrize("call", RECORDED)
def test_draws_what_jax_draws(call: str) -> None:
    want = torch.from_numpy(RECORDED[call])
    # The tail of a Cauchy number is steep; a logarithm near 1 is, too.
    rtol = 1e-4 if "cauchy" in call else 3e-6
    got = eval(call, NAMES).cpu()
    if "choice" in call:
        want = want.long()
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=rtol, atol=2e-6)


@pytest.mark.parametrize("call", [c for c in RECORDED if "(key(1)" in c or "(key(4)" in c][::2])
def test_draws_the_same_inside_jit(call: str) -> None:
    torch.testing.assert_close(xf.jit(lambda: eval(call, NAMES))(), eval(call, NAMES))


@pytest.mark.parametrize("method", ["eigh", "svd"])
def test_roots_of_a_covariance(method: str) -> None:
    drawn = xr.multivariate_normal(xr.key(0), ROW, COV, (4000,), method=method).cpu()
    torch.testing.assert_close(drawn.mean(0), ROW, rtol=0, atol=0.15)
    torch.testing.assert_close(drawn.T.cov(), COV, rtol=0, atol=0.25)


def test_gradients_flow_to_scales() -> None:
    def total(scale):
        return xr.rayleigh(xr.key(1), scale, (5,)).sum()

    want = total(torch.tensor(1.0))
    torch.testing.assert_close(xf.grad(total)(2.0), want)
    with pytest.raises(xf.errors.UnsupportedOpError, match="while_loop"):
        xf.grad(lambda a: xr.gamma(xr.key(1), a, (5,)).sum())(2.0)


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
        ("rademacher(key(0), (), table.to(f32).bool().dtype)", TypeError, "one with a sign"),
        ("multivariate_normal(key(0), row, row)", ValueError, r"covariance of the shape \(3,\)"),
        ("multivariate_normal(key(0), row, cov, method='lu')", ValueError, "method='lu'"),
    ],
)
def test_errors(call: str, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        eval(call, NAMES)
