"""Polynomials, and ratios of them, from their values at a few points."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from xfunc.symbolic.numbers import digits, is_close
from xfunc.symbolic.polynomial import Env, Monomial, Number, Polynomial, Ratio, Size, simplest
from xfunc.symbolic.shape_domain import ShapeDomain

_MAX_DENOMINATOR = 64


class Solver:
    """Finds the expression with given values at given points.

    Args:
        points: the symbols' values at each; there are more points than monomials, so that the rest
            check the result.
        monomials: the allowed monomials of a polynomial.
        box: the sizes of the symbols: at all of them, a size is a whole number.
    """

    def __init__(
        self, points: Sequence[Env], monomials: Sequence[Monomial], box: ShapeDomain
    ) -> None:
        assert len(points) > len(monomials)
        self._points, self._monomials, self._box = points, monomials, box
        n = len(monomials)
        self._inverse = _inverse([[_at(m, env) for m in monomials] for env in points[:n]])
        self._known: dict[tuple[Number, ...], Polynomial | None] = {}
        self.sizes: dict[
            Polynomial, None
        ] = {}  # found expressions, as candidate divisors of other numbers

    def size(self, values: tuple[int, ...]) -> Size | None:
        """The size with these values, if there is one."""
        if len(set(values)) == 1:
            return values[0]
        found = self._polynomial(values)
        if found is None or not is_whole(found, self._box):
            return None
        self.sizes[found] = None
        return simplest(found)

    def real(self, values: tuple[float, ...], element_type: int) -> float | Ratio | None:
        """The floating-point number with these values, up to rounding."""
        if len(set(values)) == 1 or all(map(math.isnan, values)):
            return values[0]
        if any(math.isinf(v) or math.isnan(v) for v in values):
            return None
        for result in self._ratios(values, digits(element_type)):
            if all(
                is_close(result.at(env), v, element_type)
                for env, v in zip(self._points, values, strict=True)
            ):
                return result
        return None

    def _ratios(self, values: tuple[float, ...], precision: int) -> Iterable[Ratio]:
        rational = functools.partial(self._rational, precision=precision)
        one = Polynomial.constant(1)
        if (p := rational(values)) is not None:
            yield Ratio(p, one)
        if 0.0 in values:
            return
        if (p := rational([1 / v for v in values])) is not None:
            yield Ratio(one, p)
        for q in tuple(self.sizes):
            if p := rational([v * q.at(e) for v, e in zip(values, self._points, strict=True)]):
                yield Ratio(p, q)
        if min(values) > 0:
            if (p := rational([v * v for v in values])) is not None:
                yield Ratio(p, one, root=True)
            if (p := rational([1 / (v * v) for v in values])) is not None:
                yield Ratio(one, p, root=True)

    def _rational(self, values: Sequence[float | Number], precision: int) -> Polynomial | None:
        """The polynomial that comes close to these values, with small denominators."""
        found = []
        for v in values:
            near = Fraction(v).limit_denominator(_MAX_DENOMINATOR)
            if abs(float(near) - v) > abs(v) * 2.0 ** (3 - precision):
                return None
            found.append(near)
        return self._polynomial(tuple(found))

    def _polynomial(self, values: tuple[Number, ...]) -> Polynomial | None:
        if values not in self._known:
            n = len(self._monomials)
            coefficients = [
                sum((a * v for a, v in zip(row, values[:n], strict=True)), start=Fraction(0))
                for row in self._inverse
            ]
            p: Polynomial | None = Polynomial.of(zip(self._monomials, coefficients, strict=True))
            assert p is not None
            fits = all(p.at(e) == v for e, v in zip(self._points, values, strict=True))
            simple = all(c.denominator <= _MAX_DENOMINATOR for _, c in p.terms)
            self._known[values] = p if fits and simple else None
        return self._known[values]


def is_whole(p: Polynomial, box: ShapeDomain) -> bool:
    """Whether a polynomial is a whole number at all sizes in a box.

    Its fractional part repeats when a symbol grows by a common multiple of the denominators.
    """
    period = math.lcm(*(c.denominator for _, c in p.terms))
    if period == 1:
        return True
    starts = [box.ranges[n] for n in p.symbols]
    if period ** len(starts) > _MAX_DENOMINATOR**2:
        return False
    sizes = [range(r.min, r.min + period * r.step, r.step) for r in starts]
    envs = (dict(zip(p.symbols, at, strict=True)) for at in itertools.product(*sizes))
    return all(isinstance(p.at(env), int) for env in envs)


def independent(points: Sequence[Env], monomials: Sequence[Monomial]) -> list[Env] | None:
    """The points, beginning with some that determine all coefficients; None: no points here do."""
    chosen: list[Env] = []
    rows: list[list[Fraction]] = []
    for env in points:
        row = [Fraction(_at(m, env)) for m in monomials]
        for known in rows:
            lead = next(k for k, x in enumerate(known) if x)
            row = [x - row[lead] * y for x, y in zip(row, known, strict=True)]
        if any(row) and len(rows) < len(monomials):
            lead = next(x for x in row if x)
            rows.append([x / lead for x in row])
            chosen.append(env)
    if len(chosen) < len(monomials):
        return None
    return [*chosen, *(e for e in points if e not in chosen)]


def _at(m: Monomial, env: Env) -> int:
    return math.prod(env[name] ** e for name, e in m)


def _inverse(matrix: Sequence[Sequence[int]]) -> list[list[Fraction]]:
    """The inverse of a regular matrix, exactly, by elimination."""
    n = len(matrix)
    rows = [
        [Fraction(x) for x in row] + [Fraction(int(i == j)) for j in range(n)]
        for i, row in enumerate(matrix)
    ]
    for k in range(n):
        pivot = next(r for r in range(k, n) if rows[r][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for r in range(n):
            if r != k and rows[r][k]:
                factor = rows[r][k]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[k], strict=True)]
    return [row[n:] for row in rows]
