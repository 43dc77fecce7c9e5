"""Bits of integers, beside conversions to shorter ones, are negated before and after."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import xfunc as xf
from xfunc.hlo.passes.bits import negate_bits

from .conftest import Lower, Run, changed

Tensor = torch.Tensor
pytestmark = pytest.mark.quick
X, Y = torch.tensor([-1, 2**40 + 5, 6]), torch.tensor([3, -4, 10], dtype=torch.int32)


def in_a_function(x: Tensor, y: Tensor) -> Tensor:
    return xf.jit(lambda x: x & y)(x.int()) | xf.jit(lambda x: x.short() & 6)(x)


@pytest.mark.parametrize("fun", [lambda x, y: x.int() & y, in_a_function])
def test_negate_bits(lower: Lower, run: Run, fun: Callable[[Tensor, Tensor], Tensor]) -> None:
    module = lower(lambda x, y: [fun(x, y)], [X, Y])
    found = changed(module, negate_bits)
    assert " not(" not in str(module)
    assert str(found).count(" not(") == 3 * (str(module).count(" and(") + str(module).count(" or("))
    with xf.disable_jit():
        want = fun(X, Y)
    for each in (module, found):  # The backend runs the pass.
        assert torch.equal(run(each, [X, Y])[0], want)


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, y: x & y,
        lambda x, y: (x.int() > 0) | (y > 0),
        lambda x, y: x[0].int() & y[0],
        lambda x, y: x.to(torch.uint8) & y.to(torch.uint8),
        lambda x, y: x.int() ^ y,
    ],
)
def test_negate_bits_leaves_others(lower: Lower, fun: Callable[[Tensor, Tensor], Tensor]) -> None:
    module = lower(lambda x, y: [fun(x, y)], [X, Y])
    assert changed(module, negate_bits).to_bytes() == module.to_bytes()
