"""`memory_limit` with dynamic shapes: what fits runs, and errors give limits that suffice."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xfunc as xf
from xfunc.errors import OutOfMemoryError

S = xf.Dim("S", max=64)


def loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = torch.tanh(x @ w)
    return x.sum()


def limited(limit: int) -> Any:
    shapes = (None, (None, S, None))
    return xf.jit(xf.grad(loss), dynamic_shapes=shapes, buckets=[64], memory_limit=limit)


def check(step: Any, n: int) -> None:
    """Compare a call with eager torch."""
    generator = torch.Generator().manual_seed(n)
    ws = [torch.randn(16, 16, generator=generator) / 4 for _ in range(4)]
    x = torch.randn(4, n, 16, generator=generator)
    for got, want in zip(step(ws, x), torch.func.grad(loss)(ws, x), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=2e-5, atol=2e-5)


def test_memory_limit_exact_program_at_the_size_of_the_bucket() -> None:
    """The program with masks takes more than the limit, that of the shape itself does not."""
    step = limited(110_000)
    for n in (63, 64):
        check(step, n)


@pytest.mark.slow
def test_memory_limit_of_error_suffices_at_the_size_of_the_bucket() -> None:
    with pytest.raises(OutOfMemoryError, match="at S=64 fits no memory_limit of 40000") as caught:
        check(limited(40_000), 64)
    needed = caught.value.required_bytes
    assert needed is not None
    check(limited(needed), 64)
    with pytest.raises(OutOfMemoryError, match=f"memory_limit={needed} or more"):
        check(limited(needed - 1), 64)
