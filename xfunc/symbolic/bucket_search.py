"""`buckets`: the sizes to compile for, chosen from the sizes that occur.

A call with size s runs in the smallest bucket that holds it. The cost of a ladder of buckets is
that of all calls in their buckets, plus that of compiling them. Buckets are observed sizes: one
between two of them could be lowered to the smaller at no cost. Once the i smallest sizes are
covered, the cost of covering the next ones up to the j-th with one bucket depends only on i and j;
so the best ladder is found exactly, by dynamic programming (`_along`).

NOTE [a grid]: for several symbols the buckets are a grid, a ladder for each. With all ladders but
one given, the best one for that symbol is found exactly, by the same method: a rung then costs a
program for each combination of the others. For two symbols, one of which takes few sizes, all
ladders of that one are tried, which is exact. Otherwise the ladders are improved in turn until none
gets better, from several starts, which may miss the best.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from xfunc.errors import fail, short_repr

Sizes = tuple[int, ...]
"""A size for each symbol."""
Ladders = tuple[Sizes, ...]
"""For each symbol its rungs, in increasing order."""
Cost = Callable[..., float]
"""The cost of a call in a bucket; the bucket's size for each symbol is an argument."""

_MOST_TRIED = 2**12  # ladders of one symbol, to find a grid


def buckets(
    lengths: Iterable[object],
    n: int = 8,
    *,
    multiple_of: int = 1,
    cost: Cost | None = None,
    compile_cost: float = 0.0,
    calls: int | None = None,
) -> Any:
    """The ladder of at most `n` buckets in which calls with such sizes cost least.

    The cost of a ladder is ``calls`` times the mean over `lengths` of ``cost(bucket)``, where the
    bucket is the smallest that holds the length, plus `compile_cost` for each bucket. Of ladders
    with the same cost, the shortest is chosen.

    Args:
        lengths: sizes as they occur; or tuples of them, with a size for each of several symbols.
        n: the maximum number of programs: buckets, or points of the grid.
        multiple_of: makes buckets multiples of this number, such as 128 on a TPU.
        cost: of a call in a bucket, which does not fall as sizes rise; None: the size, or the
            product of the sizes, such as the number of tokens.
        compile_cost: of one bucket, in the same unit.
        calls: the expected number of calls; None: the number of lengths.

    Returns:
        The buckets in increasing order: a tuple of sizes, or one for each symbol.

    Raises:
        ValueError: there are no lengths, or an argument is not a positive whole number.
    """
    points, plain = _points(lengths)
    planned = len(points) if calls is None else calls
    for name, value in (("n", n), ("multiple_of", multiple_of), ("calls", planned)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problem = f"buckets was given {name}={short_repr(value)}"
            fail(ValueError, problem, "give a positive whole number.")
    if not isinstance(compile_cost, (int, float)) or not compile_cost >= 0:
        problem = f"buckets was given compile_cost={short_repr(compile_cost)}"
        fail(ValueError, problem, "give a number in the unit of `cost`, such as FLOPs.")
    counts: Counter[Sizes] = Counter()
    for sizes, times in Counter(points).items():
        counts[tuple(-(-s // multiple_of) * multiple_of for s in sizes)] += times
    found = best(counts, n, cost or _product, compile_cost * len(points) / planned)
    return found[0] if plain else found


def best(
    counts: Mapping[Sizes, int],
    n: int,
    cost: Cost,
    compile_cost: float = 0.0,
    compiled: Collection[Sizes] = (),
    tops: Sizes = (),
) -> Ladders:
    """The cheapest ladders of at most `n` programs for sizes with these counts.

    A program that no call runs is never compiled, and costs nothing.

    Args:
        counts: how often each tuple of sizes occurs.
        n: how many programs there may be.
        cost: of a call.
        compile_cost: of a program that is not among the `compiled`.
        compiled: the programs that exist already.
        tops: sizes that the ladders have to reach, even if none so large occurs.
    """
    task = _Task(counts, n, cost, compile_cost, frozenset(compiled), tops)
    return min(task.found(), key=task.total)


def bucket_of(sizes: Sequence[int], ladders: Ladders) -> Sizes | None:
    """The smallest bucket that holds these sizes, or None."""
    found: list[int] = []
    for size, rungs in zip(sizes, ladders, strict=True):
        rung = next((r for r in rungs if r >= size), None)
        if rung is None:
            return None
        found.append(rung)
    return tuple(found)


def expected_cost(
    counts: Mapping[Sizes, int],
    ladders: Ladders,
    cost: Cost,
    compile_cost: float = 0.0,
    compiled: Collection[Sizes] = (),
) -> float:
    """The cost of all calls and of compiling their buckets; infinite if a size has no bucket."""
    total, used = 0.0, set[Sizes]()
    for sizes, n in counts.items():
        bucket = bucket_of(sizes, ladders)
        if bucket is None:
            return math.inf
        used.add(bucket)
        total += n * cost(*bucket)
    new = len(used.difference(compiled))
    return total + (new * compile_cost if new else 0.0)


def waste(counts: Mapping[Sizes, int], ladders: Ladders, cost: Cost | None = None) -> float:
    """The fraction of the cost of calls in their buckets that is spent on padding."""
    cost = cost or _product
    needed = sum(n * cost(*sizes) for sizes, n in counts.items())
    spent = expected_cost(counts, ladders, cost)
    return 1 - needed / spent if spent else 0.0


class _Task:
    """See `best`."""

    def __init__(
        self,
        counts: Mapping[Sizes, int],
        n: int,
        cost: Cost,
        compile_cost: float,
        compiled: frozenset[Sizes],
        tops: Sizes,
    ):
        self._counts, self._n = counts, n
        self._cost, self._compile_cost, self._compiled = cost, compile_cost, compiled
        self._sizes: list[list[int]] = []
        for a, came in enumerate(zip(*counts, strict=True)):
            top = max(*came, *tops[a : a + 1], 0)
            also = {p[a] for p in compiled if p[a] <= top}  # It may serve smaller sizes.
            self._sizes.append(sorted({*came, *also, top}))

    def total(self, ladders: Ladders) -> tuple[float, int]:
        """The cost of ladders, and the number of their programs."""
        spent = expected_cost(self._counts, ladders, self._cost, self._compile_cost, self._compiled)
        return spent, math.prod(map(len, ladders))

    def found(self) -> Iterable[Ladders]:
        """Candidate ladders, the best among them; see NOTE [a grid]."""
        axes = range(len(self._sizes))
        if len(axes) == 1:
            yield (self._along(0, {}),)
            return
        few = min(axes, key=lambda a: len(self._sizes[a]))
        if len(axes) == 2 and 2 ** (len(self._sizes[few]) - 1) <= _MOST_TRIED:
            *lower, top = self._sizes[few]
            for k in range(min(self._n, len(lower) + 1)):
                for chosen in itertools.combinations(lower, k):
                    given = (*chosen, top)
                    other = self._along(1 - few, {few: given})
                    yield (given, other) if few == 0 else (other, given)
            return
        for split in itertools.product(range(1, self._n + 1), repeat=len(axes)):
            if math.prod(split) <= self._n:
                yield self._improved(split)

    def _improved(self, split: Sequence[int]) -> Ladders:
        tops = {a: (sizes[-1],) for a, sizes in enumerate(self._sizes)}
        now = {
            a: self._along(a, {b: t for b, t in tops.items() if b != a}, most)
            for a, most in enumerate(split)
        }
        before = (math.inf, 0)
        while (total := self.total(tuple(now.values()))) < before:
            before = total
            for a in now:
                changed = {**now, a: self._along(a, {b: r for b, r in now.items() if b != a})}
                if self.total(tuple(changed.values())) < self.total(tuple(now.values())):
                    now = changed
        return tuple(now.values())

    def _along(self, axis: int, given: Mapping[int, Sizes], most: int | None = None) -> Sizes:
        """The best rungs of one symbol, with those of the others given."""
        sizes = self._sizes[axis]
        others = list(itertools.product(*(given[a] for a in sorted(given))))
        row = {other: k for k, other in enumerate(others)}
        column = {s: k for k, s in enumerate(sizes)}
        calls = np.zeros((len(others), len(sizes)))
        beside = tuple(given[a] for a in sorted(given))
        for point, times in self._counts.items():
            rest = bucket_of([point[a] for a in sorted(given)], beside)
            assert rest is not None  # the largest size is always among the rungs
            calls[row[rest], column[point[axis]]] += times
        programs = [[(*o[:axis], s, *o[axis:]) for s in sizes] for o in others]
        costs = np.array([[float(self._cost(*p)) for p in line] for line in programs])
        opening = np.array(
            [
                [0.0 if p in self._compiled else self._compile_cost for p in line]
                for line in programs
            ]
        )
        n = min(len(sizes), max(1, self._n // len(others)) if most is None else most)
        return tuple(sizes[k] for k in _along(calls, costs, opening, n))


def _along(calls: np.ndarray, costs: np.ndarray, opening: np.ndarray, n: int) -> list[int]:
    """The columns to keep, at most n and including the last, for the least cost.

    Calls of a column go to the next column that is kept, in the same row.

    Args:
        calls: the numbers of calls, rows by columns.
        costs: of one call, likewise.
        opening: the cost of opening a row in a column, with its first call.
        n: how many columns may be kept.
    """
    rows, m = calls.shape
    below = np.zeros((rows, m + 1))
    np.cumsum(calls, axis=1, out=below[:, 1:])
    least = np.full((n + 1, m + 1), np.inf)  # by how many are kept, and how many are served
    least[0, 0] = 0.0
    before = np.zeros((n + 1, m + 1), dtype=np.int64)
    for j in range(1, m + 1):
        served = below[:, j : j + 1] - below[:, :j]
        own = costs[:, j - 1] @ served + opening[:, j - 1] @ (served > 0)
        totals = least[:n, :j] + own
        before[1:, j] = totals.argmin(axis=1)
        least[1:, j] = totals.min(axis=1)
    k, j, kept = int(least[:, m].argmin()), m, list[int]()
    while j:
        kept.append(j - 1)
        k, j = k - 1, int(before[k, j])
    return kept[::-1]


def _product(*sizes: int) -> float:
    return float(math.prod(sizes))


def _points(lengths: Iterable[Any]) -> tuple[list[Sizes], bool]:
    """The sizes as tuples, and whether they were given as plain numbers."""
    hint = "give the sizes that come, such as [len(x) for x in data]; or tuples of them."
    if isinstance(lengths, (torch.Tensor, np.ndarray)):
        lengths = lengths.tolist()
    if not isinstance(lengths, Iterable) or isinstance(lengths, str):
        fail(ValueError, f"buckets was given lengths={short_repr(lengths)}", hint)
    found = list(lengths)
    if not found:
        fail(ValueError, "buckets was given no lengths", hint)
    plain = not isinstance(found[0], (tuple, list))
    points = [(x,) if plain else x for x in found]
    for p in points:
        if not isinstance(p, (tuple, list)) or len(p) != len(points[0]) or not p:
            fail(ValueError, f"buckets was given {short_repr(p)} among tuples of sizes", hint)
        for s in p:
            if not _is_size(s):
                fail(ValueError, f"buckets was given {short_repr(s)} as a size", hint)
    return [tuple(int(s) for s in p) for p in points], plain


def _is_size(s: object) -> bool:
    return isinstance(s, (int, np.integer)) and not isinstance(s, bool) and int(s) >= 1
