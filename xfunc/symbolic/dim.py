"""`Dim`: a symbolic size, and expressions of Dims."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NoReturn

from xfunc.core.avals import SymbolicSize
from xfunc.errors import fail, short_repr
from xfunc.symbolic.polynomial import Polynomial, Size, as_polynomial
from xfunc.symbolic.shape_domain import Range, ShapeDomain
from xfunc.symbolic.solve import is_whole


class Expression(SymbolicSize):
    """A size computed from `Dim`s: a sum, product or exact quotient; compared by value.

    Attributes:
        polynomial: of the symbols.
        ranges: the sizes that each symbol may have.
    """

    __slots__ = ("polynomial", "ranges")

    def __init__(self, polynomial: Polynomial, ranges: Mapping[str, Range]) -> None:
        self.polynomial, self.ranges = polynomial, dict(ranges)

    def __add__(self, other: object) -> Expression:
        return self._made(other, operator.add)

    def __sub__(self, other: object) -> Expression:
        return self._made(other, operator.sub)

    def __rsub__(self, other: object) -> Expression:
        return self._made(other, lambda a, b: b - a)

    def __mul__(self, other: object) -> Expression:
        return self._made(other, operator.mul)

    def __floordiv__(self, k: int) -> Expression:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            fail(
                TypeError, f"{self} is divided by {short_repr(k)}", "divide by a positive integer."
            )
        found = self.polynomial * Fraction(1, k)
        if not is_whole(found, ShapeDomain(self.ranges)):
            names = ", ".join(found.symbols)
            fail(
                ValueError,
                f"{self} // {k} is not a polynomial: {names} may have sizes for which it is "
                "rounded",
                f"declare the dimension with multiple_of={k}.",
            )
        return Expression(found, self.ranges)

    def __pow__(self, k: int) -> Expression:
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            fail(TypeError, f"{self} is raised to {short_repr(k)}", "give a positive integer.")
        return Expression(self.polynomial**k, self.ranges)

    def __truediv__(self, other: object) -> NoReturn:
        fail(
            TypeError,
            f"{self} is divided by {short_repr(other)} with /",
            "sizes are whole: use //.",
        )

    __radd__, __rmul__ = __add__, __mul__

    def _made(self, other: Any, how: Any) -> Expression:
        if isinstance(other, Expression):
            ranges = merged([self, other])
            return Expression(how(self.polynomial, other.polynomial), ranges)
        if isinstance(other, int) and not isinstance(other, bool):
            return Expression(how(self.polynomial, as_polynomial(other)), self.ranges)
        return NotImplemented

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expression):
            return (self.polynomial, self.ranges) == (other.polynomial, other.ranges)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.polynomial)

    def __int__(self) -> NoReturn:
        self._refuse()

    __index__ = __float__ = __bool__ = __int__

    def _refuse(self) -> NoReturn:
        fail(
            TypeError,
            f"the size {self} is symbolic, so it has no number yet",
            "use it in dynamic_shapes or in the shape of a ShapeDtypeStruct; a function sees the "
            "sizes of its arguments as plain integers.",
        )

    def __str__(self) -> str:
        return str(self.polynomial)

    def __repr__(self) -> str:
        return str(self)


class Dim(Expression):
    """A size that varies from call to call.

    Args:
        name: its name in messages and printed programs. Dims with the same name are the same.
        min: the smallest size.
        max: the largest size, or None.
        multiple_of: a common divisor of all sizes.

    ``2 * S``, ``S + 1``, ``B * S``, ``S**2`` and, where `multiple_of` allows it,
    ``S // 2`` are sizes too.

    Source: ``torch.export.Dim``.
    """

    __slots__ = ()

    def __init__(
        self, name: str, *, min: int = 1, max: int | None = None, multiple_of: int = 1
    ) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            fail(
                ValueError,
                f"a Dim was given the name {short_repr(name)}",
                "give it a valid Python identifier.",
            )
        given = {"min": min, "max": max, "multiple_of": multiple_of}
        for what, n in given.items():
            if n is None and what == "max":
                continue
            if not isinstance(n, int) or isinstance(n, bool) or n < 1:
                problem = f"Dim({name!r}) was given {what}={short_repr(n)}"
                fail(
                    ValueError, problem, "give a positive integer; empty arrays are not supported."
                )
        sizes = Range(min, max, multiple_of)
        if sizes.max is not None and sizes.max < sizes.min:
            problem = f"Dim({name!r}): there is no multiple of {multiple_of} from {min} to {max}"
            fail(ValueError, problem, "give a larger max.")
        super().__init__(Polynomial.symbol(name), {name: sizes})

    @property
    def name(self) -> str:
        """The name it was given."""
        return self.polynomial.symbols[0]


def size_of(d: int | Expression) -> Size:
    """A dimension as a number or a polynomial."""
    return d.polynomial if isinstance(d, Expression) else d


def dimension(s: Size, box: ShapeDomain) -> int | Expression:
    """A size as users see it."""
    if not isinstance(s, Polynomial):
        return s
    return Expression(s, {n: box.ranges[n] for n in s.symbols})


def merged(dims: Iterable[object]) -> dict[str, Range]:
    """The ranges of all symbols in some dimensions."""
    result: dict[str, Range] = {}
    for d in dims:
        if not isinstance(d, Expression):
            continue
        for name, sizes in d.ranges.items():
            if result.setdefault(name, sizes) != sizes:
                fail(
                    ValueError,
                    f"there are two different Dims named {name!r}: {_shown(result[name])}, and "
                    f"{_shown(sizes)}",
                    "use one Dim, or give them different names.",
                )
    return result


def _shown(r: Range) -> str:
    step = f", multiple_of={r.step}" if r.step > 1 else ""
    return f"min={r.min}, max={r.max}{step}"
