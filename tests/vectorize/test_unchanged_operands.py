"""What a branch or a body returns unchanged is no more mapped than it was: `out_axes=None`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import xfunc as xf

Tensor = torch.Tensor
P, Y = torch.arange(3.0), torch.tensor(5.0)

UNCHANGED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "cond": lambda p, y: xf.cond(p > 1, lambda y: (p, y), lambda y: (p, y), y),
    "cond of a closed-over value": lambda p, y: xf.cond(p > 1, lambda: (p, y), lambda: (-p, y)),
    "switch": lambda p, y: xf.switch(p.long(), [lambda y: (p, y), lambda y: (p + 1, y)], y),
    "scan": lambda p, y: xf.scan(lambda c, _: ((c[0] + p, c[1]), None), (p, y), None, length=2)[0],
    "fori_loop": lambda p, y: xf.fori_loop(0, 2, lambda i, c: (c[0] + p, c[1]), (p, y)),
    "while_loop": lambda p, y: xf.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1]), (p, y)
    ),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_vmap_of_unchanged_operand_with_out_axes_none(name: str) -> None:
    f = UNCHANGED[name]
    mapped, same = xf.vmap(f, (0, None), out_axes=(0, None))(P, Y)
    assert same.item() == 5
    assert mapped.tolist() == [f(p, Y)[0].item() for p in P]


@pytest.mark.parametrize("name", UNCHANGED)
def test_grad_through_unchanged_operand(name: str) -> None:
    if name != "while_loop":
        assert xf.grad(lambda y: UNCHANGED[name](P[2], y)[1] ** 2)(Y).item() == 10
    assert xf.jvp(lambda y: UNCHANGED[name](P[2], y)[1] ** 2, (Y,), (Y,))[1].item() == 50


def test_vmap_of_changed_operand_with_out_axes_none() -> None:
    def f(p: Tensor, y: Tensor) -> Tensor:
        return xf.cond(p > 1, lambda y: y, lambda y: -y, y)

    with pytest.raises(ValueError, match="depends on the mapped axis"):
        xf.vmap(f, (0, None), out_axes=None)(P, Y)
