"""A function that holds too much to be compared is refused, with the place that holds it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import xfunc as xf


class _Box:
    def __init__(self, **parts: object):
        vars(self).update(parts)

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.slow
def test_error_of_too_many_objects_says_where_they_are() -> None:
    many = [[i] for i in range(1_000_001)]
    few = [[i] for i in range(1000)]
    inner = _Box(few=few, table={"few": few[:10], "all": (1, many)}, after=few[:9])
    self: Any = _Box(few=few, inner=inner)

    def f(x: torch.Tensor) -> torch.Tensor:
        return self(x)

    place = r"\.inner\.table\['all'\]\[1\].*a list"
    for fun, path in [
        (f, r"f\.self"),
        (self.method, r"method\.self"),
        (functools.partial(f), r"f\.self"),
        (xf.vmap(f), r"f\.self"),
    ]:
        with pytest.raises(ValueError, match=r"(?s)more than 1,000,000 objects.*" + path + place):
            xf.jit(fun)(torch.ones(1))
