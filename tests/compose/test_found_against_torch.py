"""The smallest forms of what the random programs against plain torch have found to be wrong.

What they found about changes in place and views is in ``tests/operations``, in ``test_in_place.py``
and ``test_views.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
I = torch.tensor([[1, -1], [-4, 1]], dtype=torch.int32)  # noqa: E741
U = torch.tensor([3, 0, 255, 7], dtype=torch.uint8)
B = torch.tensor([True, False, True])
F = torch.tensor([0.5, -0.25, 2.0])
C = torch.tensor([[1 + 2j, 0.5], [3j, -1 - 1j]])


def same(fun: Callable[..., Any], *args: Tensor) -> None:
    """`fun` under jit gives what it gives without."""
    torch.testing.assert_close(xf.device_get(xf.jit(fun)(*args)), fun(*args))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int32, torch.uint8])
@pytest.mark.parametrize(("start", "end", "steps"), [(0, 1, 4), (3, 7.5, 11), (3, 5, 1), (1, 2, 0)])
def test_linspace(dtype: torch.dtype, start: float, end: float, steps: int) -> None:
    """torch_xla 2.9 computes it in float32."""
    same(lambda x: (torch.linspace(start, end, steps, dtype=dtype), x + 1), F)


def test_linspace_inside_transforms() -> None:
    def fun(x: Tensor) -> Tensor:
        return (x * torch.linspace(0, 1, 3)).sum()

    assert xf.grad(fun)(F).tolist() == [0.0, 0.5, 1.0]
    assert xf.vmap(fun)(F[None]).tolist() == [fun(F).item()]


def test_linspace_of_half_precision_in_an_inner_program() -> None:
    """torch_xla says that it is of half precision, and makes it of float32."""

    def fun(x: Tensor) -> Tensor:
        line = torch.linspace(0, 1, 3, dtype=torch.float16)
        return xf.cond(x[0] > 0, lambda v: v * 2, lambda v: v * 3, line)

    assert xf.device_get(xf.jit(fun)(F)).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("fun", "x"),
    [
        (lambda x: torch.mean(x, dtype=torch.float64), U),
        (lambda x: torch.mean(x, dtype=torch.float32), B),
        (lambda x: torch.mean(x, dtype=torch.float64), F),
        (lambda x: torch.logsumexp(x, 1), I),
        (lambda x: torch.logsumexp(x, 0), U % 5),
        (lambda x: torch.logsumexp(x, 0), F),
        (lambda x: x.std(), C),
        (lambda x: x.var(0), C),
        (lambda x: x.std(-2, correction=0, keepdim=True), C),
        (lambda x: x[0, 0].clone().masked_scatter_(torch.tensor(True), x[1]), I),
        (lambda x: x[0, 0].masked_scatter(torch.tensor(False), x[1]), I),
    ],
)
def test_reductions_and_scalars(fun: Callable[[Tensor], Tensor], x: Tensor) -> None:
    same(fun, x)


def test_a_complex_array_made_of_a_range_and_seen_as_real() -> None:
    """torch_xla's own view of it as real ends the process."""

    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        z = (torch.arange(6).reshape(3, 2) * -0.5).to(torch.complex64) + x[0]
        v = torch.view_as_real(z)
        z.unbind(-1)[0].sub_(0.5)
        return v, z.imag

    same(fun, F)


def test_a_mask_without_dimensions() -> None:
    def fun(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = x.clone()
        z[y > 0] = 1.0
        w = x.clone()
        w[y > 0] = x * 3
        return z, w

    for y in (1.0, -1.0):
        same(fun, F, torch.tensor(y))
    got = xf.vmap(fun, in_axes=(None, 0))(F, F)
    want = [torch.stack(parts) for parts in zip(*(fun(F, y) for y in F), strict=True)]
    torch.testing.assert_close(xf.device_get(got), tuple(want))


@pytest.mark.parametrize("mask", [[True, False, True], [[True], [False]], [[[True]], [[False]]]])
def test_masked_scatter_with_a_mask_of_another_shape(mask: list[Any]) -> None:
    x, m = torch.arange(6.0).reshape(2, 3), torch.tensor(mask)

    def fun(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1
        if m.ndim <= 2:
            y.masked_scatter_(m, x + 10)
        return y, torch.masked_scatter(x, m, torch.arange(20.0))

    same(fun, x)
