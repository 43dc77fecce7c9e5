"""Sorts, searches, running extremes and writes to slices along a Dim are one program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xfunc as xf

S = xf.Dim("S", min=4, max=16)
Program = Callable[[torch.Tensor], Any]


def check(f: Program, make: Callable[[int], torch.Tensor]) -> None:
    """Compare one program with eager torch at several sizes."""
    jitted = xf.jit(f, dynamic_shapes=((S,),), buckets=[16])
    for n in (7, 16, 4):
        x = make(n)
        for got, want in zip(xf.tree.leaves(jitted(x)), xf.tree.leaves(f(x)), strict=True):
            torch.testing.assert_close(got.cpu(), want, equal_nan=True)
            assert torch.equal(got.cpu().signbit(), want.signbit())
    assert "3 calls, one program" in jitted.explain(), jitted.explain()


def special(n: int) -> torch.Tensor:
    """Infinities, NaN and both zeros, whose order padding must not change."""
    return torch.tensor([math.inf, -0.0, math.nan, 0.0, -math.inf, 2.0, -0.0, math.nan] * 2)[:n]


def extreme(n: int) -> torch.Tensor:
    """The smallest and the largest integers."""
    return torch.tensor([2**63 - 1, -(2**63), 0, 2**63 - 1] * 4)[:n]


def logical(n: int) -> torch.Tensor:
    return torch.arange(n) % 3 == 0


@pytest.mark.quick(4, seed=0)
@pytest.mark.parametrize("make", [special, extreme, logical])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_along_dim_of_special_values(
    make: Callable[[int], torch.Tensor], descending: bool
) -> None:
    check(lambda x: torch.sort(x, stable=True, descending=descending), make)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.cummax(0),
        lambda x: x.cummin(0),
        lambda x: torch.searchsorted(x.nan_to_num(9).sort()[0], x.nan_to_num(9), right=True),
    ],
)
def test_running_extremes_and_searches_along_dim_of_special_values(f: Program) -> None:
    check(f, special)


def test_running_extremes_of_integers_and_bools() -> None:
    functions: list[Any] = [torch.cummax, torch.cummin]
    for f in functions:
        for x in (extreme(9), logical(9), special(16).half(), torch.zeros(0), torch.tensor(3.0)):
            got, want = xf.jit(f, static_argnums=1)(x, 0), f(x, 0)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a.cpu(), b, equal_nan=True)


def test_dim_write_to_slice_of_fixed_size_clamps_start() -> None:
    def f(x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return xf.vmap(lambda s: torch.zeros(16).index_put((s + torch.arange(x.shape[0]),), x))(
            start
        )

    jitted = xf.jit(f, dynamic_shapes=((S,), None), buckets=[16])
    for n in (5, 16, 9):
        x, start = torch.arange(1.0, n + 1), torch.tensor([0, 16 - n])
        torch.testing.assert_close(jitted(x, start).cpu(), torch.stack(
            [F.pad(x, (s, 16 - n - s)) for s in start.tolist()]
        ))  # fmt: skip
