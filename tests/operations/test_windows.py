"""Pooling and resizing: which elements are read."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import xfunc as xf


def test_nearest_interpolation_rounds_positions_as_torch_does() -> None:
    """Where positions are whole numbers but for rounding in float32."""
    pairs = [(2, 50), (6, 38), (10, 6), (10, 12), (26, 14), (42, 15), (51, 9)]

    def f(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            F.interpolate(x, size=o, mode="nearest") for x, (_, o) in zip(xs, pairs, strict=True)
        ]

    xs = [torch.arange(float(n))[None, None] for n, _ in pairs]
    for got, want in zip(xf.device_get(xf.jit(f)(xs)), f(xs), strict=True):
        assert torch.equal(got, want)


def test_average_pool_reads_nothing_outside_of_its_windows() -> None:
    x = torch.randn(1, 1, 9)
    x[..., 0], x[..., -1] = torch.inf, torch.nan

    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            F.avg_pool1d(x, 3, 2, padding=1),
            F.avg_pool1d(x, 4, 3, padding=2, ceil_mode=True, count_include_pad=False),
            F.adaptive_avg_pool1d(x, 4),
        ]

    for got, want in zip(xf.device_get(xf.jit(f)(x)), f(x), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
