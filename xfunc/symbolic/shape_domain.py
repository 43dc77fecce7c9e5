"""`ShapeDomain`: the sizes that symbols may have, and comparison of polynomials over all of them.

A comparison answers True, False, or None if it gives up: it never guesses.

NOTE [how it decides]: a polynomial in which no symbol has a higher power than 1 has its extremes at
corners of the box, so their values decide. Any other is written in the Bernstein basis of the box:
its coefficients enclose its values; if they do not decide, the box is halved. Corners are
themselves sizes, so a corner where the claim fails refutes it. In a symbol without a largest size,
the polynomial is written in powers of the excess over the smallest size: if no coefficient is ever
negative, neither is the polynomial.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

from xfunc.symbolic.polynomial import Env, Number, Polynomial, Size, as_polynomial

_MAX_BOXES = 512


@dataclasses.dataclass(frozen=True)
class Range:
    """The sizes of one symbol: the multiples of `step` from `min` to `max`; at least one.

    If `max` is None there is no largest.
    """

    min: int = 1
    max: int | None = None
    step: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "min", -(-self.min // self.step) * self.step)
        if self.max is not None:
            object.__setattr__(self, "max", self.max // self.step * self.step)

    def __contains__(self, size: int) -> bool:
        return self.min <= size and size % self.step == 0 and (self.max is None or size <= self.max)


@dataclasses.dataclass(frozen=True)
class ShapeDomain:
    """The sizes of several symbols, in every combination."""

    ranges: Mapping[str, Range]

    def within(self, **ends: tuple[int, int]) -> ShapeDomain:
        """The part of the box in which symbols are between two sizes, inclusive."""
        found = dict(self.ranges)
        for name, (low, high) in ends.items():
            found[name] = Range(low, high, self.ranges[name].step)
        return ShapeDomain(found)

    def corners(self) -> Iterator[Env]:
        """All combinations of smallest and largest sizes; a small one stands for "no largest"."""
        ends = [sorted({r.min, r.min + r.step if r.max is None else r.max}) for r in self._list()]
        for sizes in itertools.product(*ends):
            yield dict(zip(self.ranges, sizes, strict=True))

    def never_negative(self, p: Size) -> bool | None:
        """Whether `p` is at least 0 at all sizes; None: undecided."""
        p = as_polynomial(p)
        free = [n for n in p.symbols if self.ranges[n].max is None]
        if free:
            return self._never_negative_unbounded(p, free[0])
        todo, seen = [ShapeDomain({n: self.ranges[n] for n in p.symbols})], 0
        while todo:
            box = todo.pop()
            if any(p.at(corner) < 0 for corner in box.corners()):
                return False
            if all(p.degree(n) <= 1 for n in p.symbols) or min(box._bernstein(p)) >= 0:
                continue
            seen += 1
            if seen > _MAX_BOXES:
                return None
            todo += box._halves()
        return True

    def at_most(self, p: Size, q: Size) -> bool | None:
        """Whether `p` is at most `q` at all sizes; None: undecided."""
        return self.never_negative(as_polynomial(q) - p)

    def compare(self, p: Size, q: Size) -> str | None:
        """``<=``, ``>=`` or ``==`` if that holds at all sizes, ``<>`` if none does.

        None: undecided.
        """
        if as_polynomial(p) == as_polynomial(q):
            return "=="
        below, above = self.at_most(p, q), self.at_most(q, p)
        if below or above:
            return "==" if below and above else "<=" if below else ">="
        return "<>" if below is False and above is False else None

    def bounds(self, p: Size) -> tuple[Number, Number]:
        """Bounds of `p` in a bounded box; its extremes, if it is multilinear."""
        p = as_polynomial(p)
        box = ShapeDomain({n: self.ranges[n] for n in p.symbols})
        if all(p.degree(n) <= 1 for n in p.symbols):
            values = [p.at(corner) for corner in box.corners()]
        else:
            values = box._bernstein(p)
        return min(values), max(values)

    def _list(self) -> list[Range]:
        return list(self.ranges.values())

    def _never_negative_unbounded(self, p: Polynomial, name: str) -> bool | None:
        low = self.ranges[name].min
        shifted = _shift(p, name, low)
        rest = ShapeDomain({n: r for n, r in self.ranges.items() if n != name})
        parts = [rest.never_negative(c) for c in shifted.coefficients(name).values()]
        if all(parts):
            return True
        tries = (low + k * self.ranges[name].step for k in (0, 1, 2, 7, 1000, 10**9))
        if any(rest.never_negative(_set(p, name, x)) is False for x in tries):
            return False
        return None

    def _bernstein(self, p: Polynomial) -> list[Number]:
        """The coefficients of `p` in the Bernstein basis of the box."""
        for name, r in self.ranges.items():  # to [0, 1]
            assert r.max is not None
            p = _shift(p, name, r.min)
            p = Polynomial.of((m, c * (r.max - r.min) ** dict(m).get(name, 0)) for m, c in p.terms)
        degrees = {n: p.degree(n) for n in self.ranges}
        result = []
        for index in itertools.product(*(range(d + 1) for d in degrees.values())):
            at = dict(zip(degrees, index, strict=True))
            total: Number = 0
            for m, c in p.terms:
                for n, e in m:
                    c *= Fraction(math.comb(at[n], e), math.comb(degrees[n], e))
                total += c
            result.append(total)
        return result

    def _halves(self) -> list[ShapeDomain]:
        """The box cut in two, with no size left out; [] if it cannot be halved.

        There is nothing between neighbouring sizes: then the corners are all there is.
        """
        name, r = max(self.ranges.items(), key=lambda x: ((x[1].max or 0) - x[1].min) / x[1].step)
        assert r.max is not None
        if r.max - r.min <= r.step:
            return []
        middle = (r.min + r.max) // 2 // r.step * r.step
        return [self.within(**{name: (r.min, middle)}), self.within(**{name: (middle, r.max)})]


def _shift(p: Polynomial, name: str, by: int) -> Polynomial:
    """`p` with ``name + by`` in place of the symbol `name`."""
    return _replaced(p, name, Polynomial.symbol(name) + by)


def _set(p: Polynomial, name: str, value: int) -> Polynomial:
    return _replaced(p, name, Polynomial.constant(value))


def _replaced(p: Polynomial, name: str, new: Polynomial) -> Polynomial:
    parts = (c * new**power for power, c in p.coefficients(name).items())
    return sum(parts, start=Polynomial(()))
