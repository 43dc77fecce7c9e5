"""Special functions in float64, in their tails and next to their poles, against exact values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
S = torch.special
F64 = torch.float64


@pytest.mark.parametrize(
    ("f", "x", "expected"),
    [
        (
            S.ndtri,
            [1e-300, 1e-50, 1e-16, 1e-9, 0.3, 0.5, 1 - 1e-9],
            [
                -37.0470962993612, -14.933337534788487, -8.222082216130435, -5.9978070150076865,
                -0.5244005127080409, 0.0, 5.997807019601637,
            ],
        ),
        (lambda x: S.polygamma(2, x), [-12.5], [-0.0059084365857879715]),
        (S.digamma, [-1e-300, -1e-20, -1e-10], [1e300, 1e20, 1e10 - 0.5772156649]),
        (torch.lgamma, [1 - 2.0**-40, 1 + 2.0**-40], [5.249745890e-13, -5.249745890e-13]),
        (S.bessel_j0, [5.525, 20.0], [0.0016739929, 0.16702466434]),
        (S.modified_bessel_k1, [2.2250738585072014e-308], [4.49423283715579e307]),
    ],
    ids=["ndtri", "polygamma", "digamma", "lgamma", "j0", "k1"],
)  # fmt: skip
def test_special_function_in_its_tails(
    f: Callable[[Tensor], Tensor], x: list[float], expected: list[float]
) -> None:
    found = xf.device_get(xf.jit(f)(torch.tensor(x, dtype=F64)))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=F64), rtol=1e-7, atol=0)


@pytest.mark.parametrize("of", [torch.special.xlog1py, torch.special.xlogy])
def test_xlog1py_and_xlogy_of_a_number(of: Callable[..., torch.Tensor]) -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return of(x, 2.0), of(2, x), of(x.int(), 3), of(x.bfloat16(), 0.1)

    x = torch.tensor([0.0, 0.5, 3.0])
    torch.testing.assert_close(xf.device_get(xf.jit(both)(x)), both(x))
    got = xf.grad(lambda x: of(x, 2.0).sum())(x)
    torch.testing.assert_close(xf.device_get(got), torch.func.grad(lambda x: of(x, 2.0).sum())(x))
