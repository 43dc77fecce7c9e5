"""Pooling and resizing: which elements are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
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


IMAGE = torch.rand(2, 3, 4, 5)


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.adaptive_avg_pool1d(x[0], 0),
        lambda x: F.adaptive_avg_pool2d(x, (0, 2)),
        lambda x: F.adaptive_avg_pool3d(x, (0, 2, 3)),
        lambda x: F.adaptive_max_pool1d(x[0], 0),
        lambda x: F.adaptive_max_pool2d(x, (3, 0)),
        lambda x: F.adaptive_max_pool3d(x, (0, 2, 1)),
        lambda x: F.interpolate(x, scale_factor=0.1, mode="area"),
    ],
)
def test_adaptive_pooling_to_no_elements(pool: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """torch has no gradient here."""
    want = pool(IMAGE)
    assert xf.jit(pool)(IMAGE).shape == want.shape
    assert xf.vmap(pool)(IMAGE[None]).shape == (1, *want.shape)
    assert not xf.device_get(xf.grad(lambda x: pool(x).sum())(IMAGE)).any()


@pytest.mark.parametrize(
    "resize",
    [
        lambda x: F.interpolate(x, scale_factor=0.1),
        lambda x: F.interpolate(x, scale_factor=0.1, mode="nearest-exact"),
        lambda x: F.interpolate(x, scale_factor=0.1, mode="bilinear"),
        lambda x: F.interpolate(x, scale_factor=0.1, mode="bilinear", antialias=True),
        lambda x: F.interpolate(x, scale_factor=0.1, mode="bicubic"),
        lambda x: F.interpolate(x[:, :, :0], scale_factor=0.5, mode="bicubic"),
        lambda x: F.adaptive_avg_pool2d(x[:, :, :0], 2),
        lambda x: F.adaptive_max_pool2d(x[:, :, :0], 2),
    ],
)
def test_resizing_without_elements_is_refused(
    resize: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    for run in (resize, xf.jit(resize)):
        with pytest.raises(RuntimeError, match=r"sizes should be greater than 0|non-zero size"):
            run(IMAGE)
