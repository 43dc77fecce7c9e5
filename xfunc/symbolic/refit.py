"""`Refit`: a ladder of buckets that follows the sizes that come.

NOTE [when a new ladder pays]: nobody says how many calls are still to come, so as many are expected
as there have been. What they would take in the ladder as it is, is compared with what they would
take in the best one, plus what it takes to compile those of its programs that are not there yet. It
is asked after 16, 32, 64, ... calls: a program that runs for long ends up with the ladder of its
sizes, having compiled little for nothing; and what asking takes is nothing beside the calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from xfunc.symbolic.ladder import Cost, Ladders, Sizes, best, expected_cost

_FIRST = 16  # calls after which it is first asked


class Refit:
    """Counts what comes, and says when another ladder would pay.

    Args:
        n: how many programs a ladder may have.
        cost: of a call in a bucket.
        compile_cost: of a program, in the same unit.

    Attributes:
        counts: how often each tuple of sizes came.
        calls: how many there were.
        compile_cost: of a program.
    """

    def __init__(self, n: int, cost: Cost, compile_cost: float):
        self._n, self._cost, self.compile_cost = n, cost, compile_cost
        self._next = _FIRST
        self.counts: Counter[Sizes] = Counter()
        self.calls = 0

    def add(self, sizes: Sizes) -> bool:
        """Count a call; whether it is time to ask for a proposal."""
        self.counts[sizes] += 1
        self.calls += 1
        if self.calls < self._next:
            return False
        self._next = 2 * self.calls
        return True

    def proposal(self, ladders: Ladders, compiled: Collection[Sizes] = ()) -> Ladders | None:
        """A ladder that pays for being compiled, or None.

        Args:
            ladders: as they are.
            compiled: the programs that are there, buckets of older ladders too.
        """
        if not self.counts:
            return None
        tops = tuple(rungs[-1] for rungs in ladders)
        found = best(self.counts, self._n, self._cost, self.compile_cost, compiled, tops)
        gains = self._total(found, compiled) < self._total(ladders, compiled)
        return found if gains else None

    def _total(self, ladders: Ladders, compiled: Collection[Sizes]) -> float:
        """What as many calls again would take, with what has to be compiled for them."""
        return expected_cost(self.counts, ladders, self._cost, self.compile_cost, compiled)
