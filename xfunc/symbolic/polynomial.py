"""`Polynomial`: a size as a function of symbols, such as ``2*B*S - 1``."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

Number = int | Fraction
Monomial = tuple[tuple[str, int], ...]  # symbols with their exponents, by name; () is 1
Env = Mapping[str, int]  # values of the symbols


@dataclasses.dataclass(frozen=True, eq=False)
class Polynomial:
    """A polynomial in symbols with rational coefficients (integers, for nearly all sizes).

    Polynomials are compared by value: by their terms; a constant one equals its number.

    Attributes:
        terms: the coefficients (none is 0) of the monomials, in order of the monomials.
    """

    terms: tuple[tuple[Monomial, Number], ...]

    @classmethod
    def of(cls, terms: Iterable[tuple[Monomial, Number]]) -> Polynomial:
        """The sum of terms; several may have the same monomial."""
        found: dict[Monomial, Number] = {}
        for m, c in terms:
            found[m] = found.get(m, 0) + c
        return cls(tuple(sorted((m, _plain(c)) for m, c in found.items() if c)))

    @classmethod
    def symbol(cls, name: str) -> Polynomial:
        """The symbol itself."""
        return cls(((((name, 1),), 1),))

    @classmethod
    def constant(cls, value: Number) -> Polynomial:
        """A constant polynomial."""
        return cls.of([((), value)])

    # -- properties ---------------------------------------------------------------------------

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """The names of the symbols in it, sorted."""
        return tuple(sorted({name for m, _ in self.terms for name, _ in m}))

    def degree(self, symbol: str) -> int:
        """The highest power of a symbol."""
        return max((dict(m).get(symbol, 0) for m, _ in self.terms), default=0)

    @property
    def is_constant(self) -> bool:
        """Whether it is just a number."""
        return not self.symbols

    def at(self, env: Env) -> Number:
        """Its value for given values of the symbols; an int if it is whole."""
        terms = (c * math.prod(env[name] ** e for name, e in m) for m, c in self.terms)
        return _plain(sum(terms))

    def coefficients(self, symbol: str) -> dict[int, Polynomial]:
        """The coefficients of the powers of a symbol: polynomials in the other symbols."""
        found: dict[int, list[tuple[Monomial, Number]]] = {}
        for m, c in self.terms:
            rest = tuple((name, e) for name, e in m if name != symbol)
            found.setdefault(dict(m).get(symbol, 0), []).append((rest, c))
        return {power: Polynomial.of(terms) for power, terms in found.items()}

    def __hash__(self) -> int:
        return hash(self._value)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Polynomial):
            return self.terms == other.terms
        return isinstance(other, (int, Fraction)) and self._value == other

    @functools.cached_property
    def _value(self) -> object:
        """Its key for comparisons: the number if it is constant, else its terms."""
        return self.at({}) if self.is_constant else self.terms

    # -- arithmetic ---------------------------------------------------------------------------

    def __add__(self, other: Size) -> Polynomial:
        return Polynomial.of([*self.terms, *as_polynomial(other).terms])

    def __neg__(self) -> Polynomial:
        return self * -1

    def __sub__(self, other: Size) -> Polynomial:
        return self + -as_polynomial(other)

    def __rsub__(self, other: Size) -> Polynomial:
        return -self + other

    def __mul__(self, other: Size | Fraction) -> Polynomial:
        pairs = itertools.product(self.terms, as_polynomial(other).terms)
        return Polynomial.of((_times(m, n), c * d) for (m, c), (n, d) in pairs)

    def __pow__(self, n: int) -> Polynomial:
        return math.prod([self] * n, start=Polynomial.constant(1))

    __radd__, __rmul__ = __add__, __mul__

    def divided(self, other: Size) -> Polynomial | None:
        """The polynomial quotient by `other`; None if the division is not exact."""
        divisor, rest, result = as_polynomial(other), self, Polynomial(())
        if not divisor.terms:
            return None
        names = sorted({*self.symbols, *divisor.symbols})
        lead, c = _leading(divisor, names)
        while rest.terms:
            m, d = _leading(rest, names)
            powers = dict(_times(m, tuple((name, -e) for name, e in lead)))
            if any(e < 0 for e in powers.values()):
                return None
            left = tuple((name, e) for name, e in powers.items() if e)
            term = Polynomial.of([(left, Fraction(d) / c)])
            result, rest = result + term, rest - term * divisor
        return result

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        ordered = sorted(self.terms, key=lambda t: (-sum(e for _, e in t[0]), t[0]))
        text = "".join(_signed(m, c) for m, c in ordered)
        return text.removeprefix("+")

    def __repr__(self) -> str:
        return f"Polynomial({self})"


Size = int | Polynomial


def as_polynomial(x: Size | Fraction) -> Polynomial:
    """A number as a polynomial; a polynomial unchanged."""
    return x if isinstance(x, Polynomial) else Polynomial.constant(x)


def simplest(x: Size) -> Size:
    """A polynomial that is a constant integer as that integer; anything else unchanged."""
    if isinstance(x, Polynomial) and x.is_constant and isinstance(x.at({}), int):
        return int(x.at({}))
    return x


def value(x: Size, env: Env) -> int:
    """A size for given values of the symbols.

    Raises:
        ValueError: it is not an integer there.
    """
    result = x.at(env) if isinstance(x, Polynomial) else x
    if not isinstance(result, int):
        raise ValueError(f"{x} is {result} at {dict(env)}, which is no size")
    return result


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes."""
    return simplest(math.prod(sizes, start=Polynomial.constant(1)))


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A real function of symbols: ``numerator / denominator``, or its square root."""

    numerator: Polynomial
    denominator: Polynomial
    root: bool = False

    def at(self, env: Env) -> float:
        """Its value for given values of the symbols; division by 0 gives infinity or NaN."""
        top, bottom = self.numerator.at(env), self.denominator.at(env)
        if bottom == 0:
            return math.nan if top == 0 else math.copysign(math.inf, top)
        result = float(Fraction(top) / Fraction(bottom))
        if not self.root:
            return result
        return math.sqrt(result) if result >= 0 else math.nan

    def __str__(self) -> str:
        text = str(self.numerator)
        if self.denominator != 1:
            text = f"{_factor(self.numerator)}/{_factor(self.denominator)}"
        return f"sqrt({text})" if self.root else text


def _plain(c: Number) -> Number:
    return c.numerator if c.denominator == 1 else c


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for name, e in b:
        powers[name] = powers.get(name, 0) + e
    return tuple(sorted(powers.items()))


def _leading(p: Polynomial, names: Sequence[str]) -> tuple[Monomial, Number]:
    return max(p.terms, key=lambda t: [dict(t[0]).get(n, 0) for n in names])


def _signed(m: Monomial, c: Number) -> str:
    factors = [name if e == 1 else f"{name}^{e}" for name, e in m]
    top, bottom = abs(c.numerator), c.denominator
    if top != 1 or not factors:
        factors.insert(0, str(top))
    text = "*".join(factors) + (f"/{bottom}" if bottom != 1 else "")
    return f"{'-' if c < 0 else '+'}{text}"


def _factor(p: Polynomial) -> str:
    text = str(p)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def monomials(symbols: Iterable[str], highest: int) -> Iterator[Monomial]:
    """All monomials in at most two symbols with no power higher than `highest`."""
    names = sorted(symbols)
    yield ()
    for name in names:
        yield from (((name, e),) for e in range(1, highest + 1))
    for a, b in itertools.combinations(names, 2):
        powers = itertools.product(range(1, highest + 1), repeat=2)
        yield from (((a, e), (b, f)) for e, f in powers if e + f <= highest + 1)
