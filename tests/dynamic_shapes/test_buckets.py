"""`xf.buckets`: a ladder of buckets for lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import xfunc as xf

pytestmark = pytest.mark.quick


def test_buckets_of_lengths_of_every_kind() -> None:
    assert xf.buckets([3, 3, 3, 9, 10], n=2) == (3, 10)
    assert xf.buckets(torch.tensor([3, 3, 3, 9, 10]), n=2) == (3, 10)
    assert xf.buckets(np.array([3, 3, 3, 9, 10]), n=2, multiple_of=8) == (8, 16)
    assert xf.buckets((x for x in (4, 4)), n=3) == (4,)
    assert xf.buckets([(2, 3), (2, 9), (4, 3)], n=2) == ((4,), (3, 9))  # 60 tokens
    assert xf.buckets([1, 100], compile_cost=60, calls=1) == (100,)
    assert xf.buckets([1, 100], compile_cost=60, calls=100) == (1, 100)


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([], {}, "no lengths"),
        ("abc", {}, "lengths='abc'"),
        (3, {}, "lengths=3"),
        ([3, 0], {}, "0 as a size"),
        ([3, 1.5], {}, r"1\.5 as a size"),
        ([True], {}, "True as a size"),
        ([(1, 2), (3,)], {}, r"\(3,\) among tuples"),
        ([3], {"n": 0}, "n=0"),
        ([3], {"n": 2.0}, r"n=2\.0"),
        ([3], {"multiple_of": -1}, "multiple_of=-1"),
        ([3], {"calls": 0}, "calls=0"),
        ([3], {"compile_cost": -1.0}, r"compile_cost=-1\.0"),
    ],
)
def test_buckets_invalid_arguments_raise(
    lengths: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        xf.buckets(lengths, **options)
