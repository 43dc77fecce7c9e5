"""Sizes that remember how they were compared.

NOTE [an analysis of one shape, for many]: analysing a program at one shape adds sizes and compares
them. Here the analysis gets sizes that behave like numbers, but know their polynomials and record
the outcome of each comparison. Wherever in the box all outcomes are the same, the analysis takes
the same course, so its results are the same polynomials and need not be recomputed. Most outcomes
are the same in the whole box, as `ShapeDomain` proves. The rest are the conditions under which the
results hold, often none.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from xfunc.hlo import Module, Shape
from xfunc.symbolic.interpolation import SymbolicModule
from xfunc.symbolic.polynomial import Env, Monomial, Polynomial, Size, as_polynomial
from xfunc.symbolic.shape_domain import ShapeDomain
from xfunc.symbolic.shapes import SymbolicShape

Terms = tuple[Any, ...]
"""Coefficients of the monomials of a `Basis`, whole numbers or fractions."""


class Basis:
    """The monomials that occur, in order; the first is 1."""

    def __init__(self, sizes: Iterable[Size]):
        found = {m for size in sizes for m, _ in as_polynomial(size).terms}
        self.monomials: list[Monomial] = [(), *sorted(found - {()})]

    def terms(self, size: Size) -> Terms:
        """A polynomial by its coefficients."""
        known = dict(as_polynomial(size).terms)
        return tuple(known.get(m, 0) for m in self.monomials)

    def polynomial(self, terms: Terms) -> Polynomial:
        """The polynomial with these coefficients."""
        return Polynomial.of(zip(self.monomials, terms, strict=True))

    def at(self, env: Env) -> np.ndarray:
        """The values of the monomials for given values of the symbols."""
        values = [math.prod(env[name] ** e for name, e in m) for m in self.monomials]
        return np.array(values, dtype=np.int64)


class Facts:
    """Questions asked about polynomials, and the answers.

    Attributes:
        negative: by its coefficients, whether a polynomial is negative.
        zero: likewise, whether it is 0.
    """

    def __init__(self) -> None:
        self.negative: dict[Terms, bool] = {}
        self.zero: dict[Terms, bool] = {}


class Tracked(int):
    """An integer that knows its polynomial and records comparisons."""

    terms: Terms
    facts: Facts

    @classmethod
    def of(cls, value: int, terms: Terms, facts: Facts) -> Tracked:
        self = cls(value)
        self.terms, self.facts = terms, facts
        return self

    def _terms(self, other: int) -> Terms:
        if isinstance(other, Tracked):
            return other.terms
        return (int(other), *(0 for _ in self.terms[1:]))

    def __add__(self, other: int) -> Tracked:
        terms = tuple(map(operator.add, self.terms, self._terms(other)))
        return Tracked.of(int(self) + int(other), terms, self.facts)

    __radd__ = __add__

    def __neg__(self) -> Tracked:
        return Tracked.of(-int(self), tuple(map(operator.neg, self.terms)), self.facts)

    def __sub__(self, other: int) -> Tracked:
        return self + -other

    def __rsub__(self, other: int) -> Tracked:
        return -self + other

    def __lt__(self, other: int) -> bool:
        terms = tuple(map(operator.sub, self.terms, self._terms(other)))
        return self.facts.negative.setdefault(terms, int(self) < int(other))

    def __gt__(self, other: int) -> bool:
        terms = tuple(map(operator.sub, self._terms(other), self.terms))
        return self.facts.negative.setdefault(terms, int(self) > int(other))

    def __le__(self, other: int) -> bool:
        return not self > other

    def __ge__(self, other: int) -> bool:
        return not self < other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int):
            return NotImplemented
        terms = tuple(map(operator.sub, self.terms, self._terms(other)))
        return self.facts.zero.setdefault(terms, int(self) == int(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    # The same for all, so that a dictionary compares them, which records the outcomes.
    def __hash__(self) -> int:
        return 0


class Always(Facts):
    """Comparisons that hold at all sizes: one is less where it always is, and else they are equal.

    Args:
        judge: decides which do.
    """

    def __init__(self, judge: Judge) -> None:
        self.negative = _Answers(judge.always_negative)
        self.zero = _Answers(lambda terms: not judge.always_differ(terms))


class _Answers(dict[Terms, bool]):
    def __init__(self, answer: Callable[[Terms], bool]) -> None:
        super().__init__()
        self._answer = answer

    def setdefault(self, key: Terms, default: bool = False) -> bool:
        return self._answer(key)


def without_asking(a: int, b: int) -> bool:
    """Whether a > b, without recording it."""
    return int.__gt__(a, b)


@dataclasses.dataclass(frozen=True, eq=False)
class Conditions:
    """Polynomials that are negative, not negative, zero or nonzero in a part of a box.

    Attributes:
        terms: their coefficients, a row for each.
        equals: for each, whether the claim is that it is zero rather than negative.
        holds: for each, whether the claim is true.
    """

    terms: np.ndarray
    equals: np.ndarray
    holds: np.ndarray

    def at(self, monomials: np.ndarray) -> bool:
        """Whether all conditions hold for these values of the monomials."""
        if not len(self.terms):
            return True
        values = self.terms @ monomials
        return bool(np.array_equal(np.where(self.equals, values == 0, values < 0), self.holds))

    def __len__(self) -> int:
        return len(self.terms)


class Judge:
    """Decides which facts hold in a whole box, as far as it can; remembers its findings."""

    def __init__(self, basis: Basis, box: ShapeDomain):
        self._basis, self._box = basis, box
        self._never_negative: dict[Terms, bool | None] = {}

    def conditions(self, facts: Facts) -> Conditions:
        """Those facts that do not hold in the whole box."""
        rows: list[Terms] = []
        equals: list[bool] = []
        holds: list[bool] = []
        for terms, is_negative in facts.negative.items():
            claim = _minus(terms) if is_negative else terms
            if not self._proved(claim, above=is_negative):
                rows.append(terms)
                equals.append(False)
                holds.append(is_negative)
        for terms, is_zero in facts.zero.items():
            known = not any(terms) if is_zero else self._is_never_zero(terms)
            if not known:
                rows.append(terms)
                equals.append(True)
                holds.append(is_zero)
        scaled = [_whole(r) for r in rows]
        width = len(self._basis.monomials)
        array = np.array(scaled, dtype=np.int64).reshape(len(rows), width)
        return Conditions(array, np.array(equals, dtype=bool), np.array(holds, dtype=bool))

    def always_negative(self, terms: Terms) -> bool:
        """Whether a polynomial is known to be negative in the whole box."""
        return self._proved(_minus(terms), above=True)

    def always_differ(self, terms: Terms) -> bool:
        """Whether a polynomial is known to be positive, or negative, in the whole box."""
        return self._is_never_zero(terms)

    def _is_never_zero(self, terms: Terms) -> bool:
        return self._proved(terms, above=True) or self._proved(_minus(terms), above=True)

    def _proved(self, terms: Terms, above: bool) -> bool:
        """Whether a polynomial with whole values is at least 0, or above 0, in the whole box."""
        if above:
            terms = (terms[0] - 1, *terms[1:])
        if not any(terms[1:]):
            return terms[0] >= 0
        if terms not in self._never_negative:
            found = self._box.never_negative(self._basis.polynomial(terms))
            self._never_negative[terms] = found
        return self._never_negative[terms] is True


def _minus(terms: Terms) -> Terms:
    return tuple(-t for t in terms)


def _whole(terms: Terms) -> Terms:
    """The terms, scaled to integers."""
    by = math.lcm(*(t.denominator for t in terms))
    return tuple(int(t * by) for t in terms)


class TrackedModule:
    """A program with `Tracked` sizes in its instructions.

    Attributes:
        module: the HLO.
        basis: the monomials of its sizes.
    """

    def __init__(self, symbolic: SymbolicModule):
        self.module = Module(symbolic.module.proto)
        pairs = zip(symbolic.module.computations, self.module.computations, strict=True)
        self._shapes: dict[int, SymbolicShape] = {}
        self._instructions = []
        for theirs, own in pairs:
            for i, j in zip(theirs.instructions, own.instructions, strict=True):
                self._shapes[j.id] = symbolic.shape(i)
                self._instructions.append(j)
        self.basis = Basis(s for shape in self._shapes.values() for s in _leaves(shape))

    def at(self, env: Env, facts: Facts | None = None) -> Facts:
        """Give the instructions their sizes there; returns the record of their comparisons."""
        facts = Facts() if facts is None else facts
        known: dict[SymbolicShape, _Shape] = {}
        for i in self._instructions:
            symbolic = self._shapes[i.id]
            if symbolic not in known:
                known[symbolic] = _Shape.tracked(symbolic, env, self.basis, facts)
            i.shape = known[symbolic]
        return facts


def _leaves(shape: SymbolicShape) -> Sequence[Size]:
    return [b for e in shape.elements for b in _leaves(e)] if shape.is_tuple else [shape.bytes]


class _Shape(Shape):
    """A shape with a `Tracked` size."""

    @classmethod
    def tracked(cls, shape: SymbolicShape, env: Env, basis: Basis, facts: Facts) -> _Shape:
        concrete = shape.at(env)
        self = cls.__new__(cls)
        elements = tuple(cls.tracked(e, env, basis, facts) for e in shape.elements)
        self._set(concrete.element_type, concrete.dims, elements)
        if not shape.is_tuple:
            size = Tracked.of(concrete.bytes, basis.terms(shape.bytes), facts)
            object.__setattr__(self, "_bytes", size)
        return self

    @property
    def bytes(self) -> int:
        return sum(e.bytes for e in self.elements) if self.is_tuple else self.__dict__["_bytes"]
