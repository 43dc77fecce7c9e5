"""Every pair of transforms, in both orders, against plain torch in float64."""

from __future__ import annotations

import pytest
import torch

import xfunc as xf
from tests.support.table import TABLE, base

X = torch.tensor([0.3, -0.8, 0.7], dtype=torch.float64)
PAIRS = [(a, b) for a in TABLE for b in TABLE]


@pytest.mark.quick
@pytest.mark.parametrize(("outer", "inner"), PAIRS, ids=[f"{a} of {b}" for a, b in PAIRS])
def test_transform_pair_equals_torch(outer: str, inner: str) -> None:
    a, b = TABLE[outer], TABLE[inner]
    staged = xf.jit(a.ours(b.ours(base)))
    if a.differentiates & b.refuses:
        refused = r"(?s)(while_loop|custom_vjp).*Hint"
        with pytest.raises(xf.errors.UnsupportedOpError, match=refused):
            staged(X)
        return
    want = a.plain(b.plain(base))(X)
    torch.testing.assert_close(staged(X).cpu(), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TABLE)
def test_transform_without_jit_equals_torch(name: str) -> None:
    want = TABLE[name].plain(base)(X)
    got = TABLE[name].ours(base)(xf.device_put(X))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", TABLE)
def test_transform_under_disable_jit_equals_torch(name: str) -> None:
    want = TABLE[name].plain(base)(X)
    with xf.disable_jit():
        got = TABLE[name].ours(base)(X)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
