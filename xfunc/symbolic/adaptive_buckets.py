"""`Refit`: a ladder of buckets that follows the sizes that occur.

NOTE [when a new ladder pays]: the number of future calls is unknown, so as many are expected as
there have been. Their cost with the current ladder is compared with their cost with the best one,
plus the cost of compiling its missing programs. This check runs after 16, 32, 64, ... calls: a
long-running program ends up with the best ladder for its sizes, with few wasted compilations, and
the cost of the checks is negligible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from xfunc.symbolic.bucket_search import Cost, Ladders, Sizes, best, expected_cost

_FIRST = 16  # calls before the first check


class Refit:
    """Counts sizes, and reports when another ladder would pay off.

    Args:
        n: how many programs a ladder may have.
        cost: of a call in a bucket.
        compile_cost: of a program, in the same unit.

    Attributes:
        counts: how often each tuple of sizes occurred.
        calls: the number of calls.
        compile_cost: of a program.
    """

    def __init__(self, n: int, cost: Cost, compile_cost: float):
        self._n, self._cost, self.compile_cost = n, cost, compile_cost
        self._next = _FIRST
        self.counts: Counter[Sizes] = Counter()
        self.calls = 0

    def add(self, sizes: Sizes) -> bool:
        """Count a call; returns whether it is time to ask for a proposal."""
        self.counts[sizes] += 1
        self.calls += 1
        if self.calls < self._next:
            return False
        self._next = 2 * self.calls
        return True

    def proposal(self, ladders: Ladders, compiled: Collection[Sizes] = ()) -> Ladders | None:
        """A ladder that is worth compiling, or None.

        Args:
            ladders: the current ones.
            compiled: the programs that exist, including buckets of older ladders.
        """
        if not self.counts:
            return None
        tops = tuple(rungs[-1] for rungs in ladders)
        found = best(self.counts, self._n, self._cost, self.compile_cost, compiled, tops)
        gains = self._total(found, compiled) < self._total(ladders, compiled)
        return found if gains else None

    def _total(self, ladders: Ladders, compiled: Collection[Sizes]) -> float:
        """The cost of as many calls again, including the compilations they need."""
        return expected_cost(self.counts, ladders, self._cost, self.compile_cost, compiled)
