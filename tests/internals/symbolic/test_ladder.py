"""Ladders of buckets against every ladder there is."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from xfunc.symbolic import bucket_search
from xfunc.symbolic.adaptive_buckets import Refit

Ladders = tuple[tuple[int, ...], ...]


def quadratic(s: int) -> int:
    return 50 * s + s * s


def uneven(s: int) -> int:
    """A cost that falls now and then, as where a size fits tiles."""
    return 3 * s + 40 * (s % 3)


def tokens(b: int, s: int) -> int:
    return b * s * (20 + s)


def every(counts: Counter[Any], n: int) -> Iterator[Ladders]:
    """All grids of at most n programs whose rungs are sizes that come."""
    choices = []
    for column in zip(*counts, strict=True):
        *lower, top = sorted(set(column))
        some = itertools.chain(*(itertools.combinations(lower, k) for k in range(n)))
        choices.append([(*c, top) for c in some])
    for found in itertools.product(*choices):
        if np.prod([len(rungs) for rungs in found]) <= n:
            yield found


def total(counts: Counter[Any], ladders: Ladders, cost: Callable[..., int], compiling: int) -> int:
    """What calls and compilations take, written down without the library."""
    spent, used = 0, set()
    for sizes, n in counts.items():
        at = tuple(min(r for r in rungs if r >= s) for s, rungs in zip(sizes, ladders, strict=True))
        used.add(at)
        spent += n * cost(*at)
    return spent + compiling * len(used)


@pytest.mark.parametrize("cost", [int, quadratic, uneven])
@pytest.mark.parametrize("compiling", [0, 700, 10**6])
def test_best_ladder_costs_least(cost: Callable[..., int], compiling: int) -> None:
    draw = random.Random(len(cost.__name__) + compiling)
    for n in (1, 2, 3, 5):
        sizes = draw.sample(range(1, 90), 9)
        counts = Counter({(s,): draw.randint(1, 40) for s in sizes})
        found = bucket_search.best(counts, n, cost, compiling)
        least = min(total(counts, other, cost, compiling) for other in every(counts, n))
        assert total(counts, found, cost, compiling) == least
        assert len(found[0]) <= n


@pytest.mark.parametrize("compiling", [0, 5000])
def test_best_grid_costs_least(compiling: int) -> None:
    draw = random.Random(compiling)
    for n in (1, 2, 4, 6):
        points = [(draw.choice((1, 2, 3, 8)), draw.choice((5, 9, 11, 30, 64))) for _ in range(40)]
        counts = Counter(points)
        found = bucket_search.best(counts, n, tokens, compiling)
        least = min(total(counts, other, tokens, compiling) for other in every(counts, n))
        assert total(counts, found, tokens, compiling) == least


def test_best_large_grid_no_worse_than_each_dim_alone() -> None:
    draw = random.Random(0)
    counts = Counter((draw.randint(1, 60), draw.randint(1, 500)) for _ in range(600))
    found = bucket_search.best(counts, 12, tokens)
    apart = []
    for a, n in ((0, 3), (1, 4)):
        own = Counter[Any]()
        for sizes, times in counts.items():
            own[(sizes[a],)] += times
        apart += bucket_search.best(own, n, int)
    assert total(counts, found, tokens, 0) <= total(counts, tuple(apart), tokens, 0)
    assert len(found[0]) * len(found[1]) <= 12


def test_waste_is_share_of_padding() -> None:
    counts = Counter({(6,): 1, (10,): 3})
    assert bucket_search.waste(counts, ((10,),)) == 1 - 36 / 40
    assert bucket_search.waste(counts, ((6, 10),)) == 0
    assert bucket_search.bucket_of([11], ((6, 10),)) is None


def test_refit_waits_until_it_pays() -> None:
    refit = Refit(4, int, 1000.0)
    asked = [k for k in range(1, 200) if refit.add((10,))]
    assert asked == [16, 32, 64, 128]
    assert refit.proposal(((100,),), [(100,)]) == ((10, 100),)  # 199 calls, each 90 too dear
    few = Refit(4, int, 1000.0)
    for _ in range(11):
        few.add((10,))
    assert few.proposal(((100,),), [(100,)]) is None  # 11 * 90 < 1000
    few.add((10,))
    assert few.proposal(((100,),), [(100,)]) == ((10, 100),)
    assert few.proposal(((10, 100),), [(100,), (10,)]) is None


def test_refit_uses_compiled_buckets_within_bound() -> None:
    def counted(n: int) -> Refit:
        refit = Refit(n, int, 50.0)
        for s in (7, 8, 40, 41):
            for _ in range(5):
                refit.add((s,))
        return refit

    # A bucket of 42 is there; one of 41 would save 10, and cost 50.
    assert counted(3).proposal(((64,),), [(64,), (42,)]) == ((8, 42, 64),)
    assert counted(2).proposal(((64,),), [(64,), (42,)]) == ((8, 64),)
    assert counted(1).proposal(((64,),), [(64,)]) is None
    assert Refit(2, int, 1.0).proposal(((64,),)) is None
