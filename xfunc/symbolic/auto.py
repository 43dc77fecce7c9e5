"""``buckets="auto"``: powers of 2 at first, then the best ladder for the sizes that occur.

NOTE [no background compilation]: a compilation would take the processor from the calls. Instead,
the benefit of a compilation is weighed: see NOTE [when a new ladder pays] in `adaptive_buckets`.
"""

from __future__ import annotations

from collections.abc import Mapping

from xfunc.symbolic.adaptive_buckets import Refit
from xfunc.symbolic.bucket_search import Ladders, Sizes
from xfunc.symbolic.shape_domain import Range, ShapeDomain

MOST_PROGRAMS = 16
_COMPILATION = 32  # the cost of one, in calls of the largest bucket


class Auto:
    """The buckets of a function for which none were given.

    Args:
        box: the sizes that its symbols may have.
    """

    def __init__(self, box: ShapeDomain) -> None:
        self._ranges = list(box.ranges.items())
        self._used: dict[Sizes, None] = {}
        self._ladders: Ladders | None = None
        self._refit = Refit(MOST_PROGRAMS, _cells, 0.0)
        self.changes = 0  # of the ladder

    def note(self, env: Mapping[str, int]) -> None:
        """Count a call, and follow the sizes if that pays."""
        sizes = tuple(env[n] for n, _ in self._ranges)
        self._refit.compile_cost = max(self._refit.compile_cost, _COMPILATION * _cells(*sizes))
        due = self._refit.add(sizes)
        self._used[tuple(high for _, high in self.ends(env).values())] = None
        if due and len(sizes) == 1:  # Finding the best grid takes seconds.
            now: Ladders = tuple(
                tuple(sorted({u[k] for u in self._used})) for k in range(len(self._ranges))
            )
            found = self._refit.proposal(now, list(self._used))
            if found is not None:
                self._ladders, self.changes = found, self.changes + 1

    def ends(self, env: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """The smallest and the largest sizes of the bucket that a call runs in."""
        result = {}
        for k, (name, r) in enumerate(self._ranges):
            rungs = self._ladders[k] if self._ladders is not None else ()
            result[name] = _between(rungs, env[name], r)
        highs = tuple(high for _, high in result.values())
        if highs not in self._used and len(self._used) >= MOST_PROGRAMS:
            sizes = [env[n] for n, _ in self._ranges]
            large = [u for u in self._used if all(s <= n for s, n in zip(sizes, u, strict=True))]
            if large:
                best = min(large, key=lambda u: _cells(*u))
                for (name, r), high in zip(self._ranges, best, strict=True):
                    low, top = result[name]
                    result[name] = (low if top == high else r.min, high)
        return result


def power_of_2(size: int, r: Range) -> tuple[int, int]:
    """The smallest and the largest size of the bucket that ends at a power of 2."""
    high = 1 << (size - 1).bit_length()
    low = high // 2 + 1
    high = -(-high // r.step) * r.step
    return low, high if r.max is None else min(high, r.max)


def _between(rungs: Sizes, size: int, r: Range) -> tuple[int, int]:
    above = [n for n in rungs if n >= size]
    if above:
        low = max((n for n in rungs if n < size), default=r.min - 1) + 1
        high = above[0]
    else:
        low, high = power_of_2(size, r)
        low = max(low, *(n + 1 for n in rungs), 0)
    return max(-(-low // r.step) * r.step, r.min), high


def _cells(*sizes: int) -> float:
    n = 1
    for s in sizes:
        n *= s
    return float(n)
