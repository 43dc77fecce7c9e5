"""Every case under every transform, staged in both orders, against plain torch in float64."""

from __future__ import annotations

import pytest
import torch

import xfunc as xf
from tests.support.cases import CASES, OURS, PLAIN, arguments


@pytest.mark.sample(120, seed=0)
@pytest.mark.quick(8, seed=0)
@pytest.mark.parametrize("transform", OURS)
@pytest.mark.parametrize("case", CASES)
def test_transforms_of_cases_equal_torch(case: str, transform: str) -> None:
    x, w = arguments()
    want = xf.tree.leaves(PLAIN[transform](CASES[case].plain)(x, w))
    ours = CASES[case].ours
    inside, outside = OURS[transform](xf.jit(ours)), xf.jit(OURS[transform](ours))
    for staged in (inside, outside):
        got = xf.tree.leaves(xf.device_get(staged(x, w)))
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
