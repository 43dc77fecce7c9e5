"""Which sizes to trace a function at, to learn how its HLO depends on them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from xfunc.symbolic.polynomial import Env, Monomial, monomials
from xfunc.symbolic.shape_domain import Range, ShapeDomain
from xfunc.symbolic.solve import independent

_FIRST = 5  # times the step: very small sizes coincide with other numbers


def probes(
    box: ShapeDomain, highest: int = 1, check: Env | None = None
) -> tuple[list[Env], list[Monomial]] | None:
    """Sizes to trace at, one more than there are monomials; and those monomials.

    The sizes of all symbols are distinct, none is 0 or 1, and none divides another, as far as there
    are such sizes: they distinguish the symbols, and are not special. The last sizes are `check`,
        if given and not among the others. None if the box has too few.
    """
    basis = list(monomials(box.ranges, highest))
    taken: list[int] = []
    chosen: dict[str, list[int]] = {}
    # Symbols with few sizes to choose from go first.
    for name, r in sorted(box.ranges.items(), key=lambda x: _count(x[1])):
        chosen[name] = list(itertools.islice(_sizes(r, taken), highest + 2))
        taken += chosen[name]
        if len(chosen[name]) < highest + 1:
            return None
    grid = [
        dict(zip(chosen, sizes, strict=True))
        for sizes in itertools.product(*(c[: highest + 1] for c in chosen.values()))
    ]
    others = [  # outside the grid, where there are other sizes
        dict(zip(chosen, sizes, strict=True))
        for sizes in [[c[-1] for c in chosen.values()], *itertools.product(*chosen.values())]
    ]
    ordered = independent(grid, basis)
    if ordered is None:
        return None
    used = ordered[: len(basis)]
    if check is None or check in used:
        check = next((e for e in others if e not in used), None)
    return None if check is None else ([*used, check], basis)


def _count(r: Range) -> float:
    return float("inf") if r.max is None else (r.max - r.min) // r.step


def _sizes(r: Range, taken: Sequence[int]) -> Iterator[int]:
    """Sizes of a symbol, best first: see `probes`."""
    seen: list[int] = []
    start = max(r.min, _FIRST * r.step)
    if r.max is not None:
        start = min(start, r.min + (r.max - r.min) // r.step // 3 * r.step)
    last = r.max if r.max is not None else start + 400 * r.step
    candidates = range(start, min(last, start + 400 * r.step) + 1, r.step)
    # Sizes in programs are mostly multiples of 4: values of such a size might be shared with
    # others. The second size is even if the first is odd: functions often treat odd and even sizes
    # differently.
    for plain, apart in ((True, True), (False, True), (False, False)):
        for size in candidates:
            known, n = [*taken, *seen], size // r.step
            if size < 2 or size in known:
                continue
            if plain and (n % 4 == 0 or (len(seen) == 1 and (n - seen[0] // r.step) % 2 == 0)):
                continue
            if not apart or all(size % x and x % size for x in known if x):
                seen.append(size)
                yield size
