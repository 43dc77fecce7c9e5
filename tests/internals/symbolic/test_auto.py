"""`buckets="auto"`: the ladder follows the sizes of calls; the number of programs is bounded."""

import itertools
import random

import pytest
import torch

import xfunc as xf
from xfunc.symbolic.auto import MOST_PROGRAMS, Auto
from xfunc.symbolic.shape_domain import Range, ShapeDomain

pytestmark = pytest.mark.quick


def highs(auto, **env):
    return tuple(high for _, high in auto.ends(env).values())


def test_auto_powers_of_two_then_seen_sizes():
    auto = Auto(ShapeDomain({"S": Range(1, 512)}))
    assert auto.ends({"S": 65}) == {"S": (65, 128)}
    for k in range(2**11):
        auto.note({"S": 65 + k % 3})
    assert auto.changes == 1
    assert auto.ends({"S": 66}) == {"S": (1, 67)}
    assert highs(auto, S=68) == (128,)  # It was compiled at the beginning.
    assert highs(auto, S=300) == (512,)


def test_auto_few_calls_change_nothing():
    auto = Auto(ShapeDomain({"S": Range(1, 512)}))
    for _ in range(40):
        auto.note({"S": 65})
    assert auto.changes == 0
    assert highs(auto, S=65) == (128,)


def test_auto_bounds_number_of_programs():
    auto = Auto(ShapeDomain({"B": Range(1, 256), "S": Range(1, 2048, 8)}))
    rng = random.Random(0)
    used = set()
    for _ in range(400):
        env = {"B": round(2 ** rng.uniform(0, 8)), "S": 8 * rng.randint(1, 256)}
        auto.note(env)
        high = highs(auto, **env)
        assert all(s <= n for s, n in zip(env.values(), high, strict=True))
        assert high[1] % 8 == 0
        for (low, top), s in zip(auto.ends(env).values(), env.values(), strict=True):
            assert low <= s <= top
        used.add(high)
    # What nothing that is there can hold is compiled all the same.
    assert len(used) <= MOST_PROGRAMS + 4


def test_auto_buckets_cover_each_size_once():
    auto = Auto(ShapeDomain({"S": Range(4, 96, 4)}))
    for n in itertools.chain(*[[12, 44, 88]] * 2000):
        auto.note({"S": n})
    assert auto.changes > 0
    ends = {auto.ends({"S": n})["S"] for n in range(4, 97, 4)}
    covered = sorted(ends)
    assert covered[0][0] == 4
    assert covered[-1][1] == 96
    assert all(low == high + 4 for (_, high), (low, _) in itertools.pairwise(covered))


def test_jit_auto_buckets_follow_sizes():
    S = xf.Dim("S", max=64)
    jitted = xf.jit(lambda x: x.mean(), dynamic_shapes=((S,),))
    for n in [33, 34, 35] * 50:
        x = torch.ones(n)
        assert jitted(x).item() == 1
    assert jitted.cache_info().compiles == 2
    text = jitted.explain()
    assert "bucket S<=64: " in text
    assert "bucket S<=35: " in text
    assert "the ladder changed 1 time" in text
