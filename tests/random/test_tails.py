"""Normal samples that are complex, or far from 0."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

import xfunc as xf

KEY = xf.random.key(0)
INF = float("inf")
BOUNDS = [(5.0, 6.0), (-6.0, -5.0), (2.5, INF), (-INF, -3.0), (12.0, 13.0), (30.0, 31.0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [*BOUNDS, (-2.0, 2.0), (1.9, 3.0), (-1.0, 9.0), (-INF, INF)])
def test_truncated_normal_has_its_distribution(
    bounds: tuple[float, float], dtype: torch.dtype
) -> None:
    drawn = xf.random.truncated_normal(KEY, *bounds, (5000,), dtype).cpu().double()
    assert bounds[0] < drawn.min() < drawn.max() < bounds[1]
    assert len(drawn.unique()) > 4500
    cdf = scipy.stats.truncnorm(*bounds).cdf
    assert scipy.stats.kstest(drawn.numpy(), cdf).pvalue > 0.01


def test_truncated_normal_of_bounds_on_both_sides() -> None:
    low, high = torch.tensor([5.0, -6.0, -2.0]), torch.tensor([6.0, -5.0, 2.0])
    drawn = xf.random.truncated_normal(KEY, low, high, (1000, 3)).cpu()
    assert ((low < drawn) & (drawn < high)).all()
    want = [scipy.stats.truncnorm(a, b).mean() for a, b in zip(low, high, strict=True)]
    np.testing.assert_allclose(drawn.double().mean(0), want, atol=0.1)


@pytest.mark.sample(2, seed=0)
@pytest.mark.parametrize("bounds", [(5.0, 6.0), (-6.0, -5.0), (3.0, INF), (-1.0, 2.0)])
def test_truncated_normal_gradient_of_finite_bound(bounds: tuple[float, float]) -> None:
    def total(shift: torch.Tensor) -> torch.Tensor:
        low, high = (b + shift if abs(b) < INF else b for b in bounds)
        return xf.random.truncated_normal(KEY, low, high, (5,), torch.float64).sum()

    h = torch.tensor(1e-6, dtype=torch.float64)
    slope = (total(h) - total(-h)).item() / (2 * h.item())
    assert xf.grad(total)(0 * h).item() == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_normal_complex(dtype: torch.dtype) -> None:
    drawn = xf.random.normal(KEY, (4000,), dtype).cpu()
    real, imag = (xf.random.normal(k, (4000,), dtype.to_real()).cpu() for k in xf.random.split(KEY))
    assert drawn.dtype is dtype
    # As JAX: (real + 1j * imag) / sqrt(2), from two keys.
    torch.testing.assert_close(drawn, torch.complex(real, imag) / 2**0.5)
    for part in (drawn.real, drawn.imag):
        scale = scipy.stats.norm(scale=0.5**0.5).cdf
        assert scipy.stats.kstest(part.double().numpy(), scale).pvalue > 0.01
