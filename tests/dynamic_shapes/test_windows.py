"""Resizing, pooling and running operations along a Dim are one program for all its sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

Tensor = torch.Tensor
Function = Callable[[Tensor], Sequence[Tensor]]


def _weighted(found: Sequence[Tensor]) -> Tensor:
    """A sum in which each element counts differently."""
    total = torch.zeros((), dtype=torch.float64)
    for y in found:
        total = total + (y * torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view(y.shape)).sum()
    return total


def check(f: Function, shape: Callable[[int], tuple[int, ...]], sizes: Sequence[int]) -> None:
    """Compare one program, and that of its gradient, with eager torch at all sizes."""
    S = xf.Dim("S", min=sizes[0], max=sizes[-1])
    dims = tuple(S if n != m else None for n, m in zip(shape(3), shape(4), strict=True))

    def both(x: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        return f(x), xf.grad(lambda x: _weighted(f(x)))(x)

    jitted = xf.jit(both, dynamic_shapes=(dims,), buckets=[sizes[-1]])
    for n in sizes:
        x = torch.randn(shape(n), dtype=torch.float64).requires_grad_()
        want = f(x)
        (slope,) = torch.autograd.grad(_weighted(want), x)
        found, grad = xf.device_get(jitted(x.detach()))
        for a, b in zip([*found, grad], [*want, slope], strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-9, atol=1e-9)
    assert f"{len(sizes)} calls, one program" in jitted.explain(), jitted.explain()


def _resized(x: Tensor) -> list[Tensor]:
    return [
        F.interpolate(x, scale_factor=2.0, mode="nearest"),
        F.interpolate(x, scale_factor=3.0, mode="nearest-exact"),
        F.interpolate(x, scale_factor=2.0, mode="linear"),
        F.interpolate(x, size=7, mode="linear"),
        F.interpolate(x, size=5, mode="nearest"),
        F.interpolate(x, size=2 * x.shape[2] + 1, mode="linear", align_corners=True),
    ]


def _resized_images(x: Tensor) -> list[Tensor]:
    return [
        F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        F.interpolate(x, size=(13, 17), mode="bicubic"),
        F.interpolate(x, scale_factor=2.0, mode="bilinear", antialias=True),
    ]


def _pooled(x: Tensor) -> list[Tensor]:
    return [
        F.avg_pool1d(x, 3, 1, padding=1, count_include_pad=False),
        F.avg_pool1d(x, 2, 1, ceil_mode=True),
    ]


def _pooled_images(x: Tensor) -> list[Tensor]:
    return [
        F.avg_pool2d(x, 3, 1, padding=1, count_include_pad=False),
        F.avg_pool2d(x, (3, 2), (2, 1), padding=1, ceil_mode=True, divisor_override=5),
    ]


def _running(x: Tensor) -> list[Tensor]:
    return [
        torch.logcumsumexp(x, 0),
        torch.logcumsumexp(x.flip(0), 0)[:, 1],
        torch.cumprod(x.detach(), 0),
        torch.cumprod((x.detach() * 3).long(), 0).double(),
    ]


CASES: dict[str, tuple[Function, Callable[[int], tuple[int, ...]], Sequence[int]]] = {
    "interpolate": (_resized, lambda n: (2, 3, n), range(1, 10)),
    "interpolate images": (_resized_images, lambda n: (1, 2, 11, n), range(1, 8)),
    "interpolate both sides": (_resized_images, lambda n: (1, 2, n, n), range(1, 8)),
    "average pool": (_pooled, lambda n: (2, 3, n), range(2, 10)),
    "average pool of images": (_pooled_images, lambda n: (1, 2, 11, n), range(2, 8)),
    "running operations": (_running, lambda n: (n, 3), range(1, 20)),
}


@pytest.mark.sample(3, seed=1)
@pytest.mark.parametrize("name", CASES)
def test_operation_along_dim_at_all_sizes(name: str) -> None:
    check(*CASES[name])


def test_gradient_of_scan_with_running_operation_along_dim() -> None:
    def scanned(x: Tensor) -> Tensor:
        def step(c: Tensor, row: Tensor) -> tuple[Tensor, None]:
            return c + x.logcumsumexp(0) * row.sum(), None

        return xf.scan(step, torch.zeros_like(x), x)[0].sum()

    S = xf.Dim("S", min=2, max=32)
    jitted = xf.jit(xf.grad(scanned), dynamic_shapes=((S, None),), buckets=[32])
    for n in (2, 17, 32):
        x = torch.randn(n, 3, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad((x.logcumsumexp(0) * x.sum()).sum(), x)
        torch.testing.assert_close(jitted(x.detach()).cpu(), slope)
    assert "3 calls, one program" in jitted.explain(), jitted.explain()


def test_running_operation_along_dim_ignores_padding() -> None:
    S = xf.Dim("S", max=32)

    def f(x: Tensor) -> Tensor:
        y = 1 / (x.shape[0] - torch.arange(x.shape[0], dtype=x.dtype))  # inf follows the last
        return torch.logcumsumexp(x.log() * y, 0)

    jitted = xf.jit(f, dynamic_shapes=((S,),), buckets=[32])
    for n in (1, 5, 17, 32):
        x = torch.rand(n, dtype=torch.float64)
        torch.testing.assert_close(jitted(x).cpu(), f(x))
    assert "4 calls, one program" in jitted.explain(), jitted.explain()


def test_dim_that_equals_other_numbers_at_some_sizes() -> None:
    """A tracer makes equal constants once, which says nothing about the function."""
    S = xf.Dim("S", min=3, max=6)
    jitted = xf.jit(
        lambda x: (x * 4.0 + float(x.shape[0])).cumsum(0), dynamic_shapes=((S,),), buckets=[6]
    )
    for n in range(3, 7):
        x = torch.randn(n)
        torch.testing.assert_close(jitted(x).cpu(), (x * 4 + n).cumsum(0))
    assert "4 calls, one program" in jitted.explain(), jitted.explain()
