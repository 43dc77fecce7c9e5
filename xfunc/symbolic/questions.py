"""Which sizes a traced program stands for, by what its function asked about them.

See NOTE [questions about sizes] in `xfunc.core.size_questions`. The numbers in a question are
fitted as the numbers in the HLO are. So the answers are known at all sizes: sizes with the same
answers take the same path, and one of them shows whether the program is right for all of them.
"""

from __future__ import annotations

import collections
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from xfunc.core.size_questions import READS, Question, Questions, apply
from xfunc.symbolic.polynomial import Env, Polynomial, Size, value
from xfunc.symbolic.shape_domain import ShapeDomain
from xfunc.symbolic.solve import Solver

_MAX_SIZES = 2**20  # combinations of sizes to compute answers for
_MAX_PATHS = 16  # in a bucket


class Undecided(Exception):
    """Which sizes take which path is not known."""

    def __init__(self, reason: str, place: str):
        super().__init__(f"{reason}, at {place}")


class Asked(NamedTuple):
    """A question with sizes in place of numbers."""

    file: str
    line: int
    form: Any
    sizes: tuple[Size | float, ...]

    @property
    def place(self) -> str:
        """Its line in the user's code."""
        return f"{self.file}:{self.line}"

    @property
    def is_read(self) -> bool:
        """Whether a number was read that the code may compare unseen."""
        return self.form[0] in READS

    @property
    def symbols(self) -> set[str]:
        """Those that its numbers depend on."""
        return {n for s in self.sizes if isinstance(s, Polynomial) for n in s.symbols}

    def at(self, env: Env) -> Question:
        """The question at given sizes."""
        numbers = (s if isinstance(s, float) else value(s, env) for s in self.sizes)
        return Question(self.file, self.line, self.form, tuple(numbers))

    def answers(self, grid: dict[str, np.ndarray]) -> np.ndarray:
        """Its answers at the sizes in a grid."""
        if self.form[0] is hash:
            raise Undecided("it looks up a size in a table", self.place)
        numbers = (_on(grid, s) if isinstance(s, Polynomial) else s for s in self.sizes)
        try:
            with np.errstate(all="raise"):
                found = apply(self.form, iter(numbers), _on_arrays)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise Undecided(f"a comparison of sizes fails at some: {error}", self.place) from error
        shape = np.broadcast_shapes(*(g.shape for g in grid.values()))
        return np.broadcast_to(np.asarray(found, dtype=bool), shape)


def fit(asked: Sequence[Questions], solver: Solver) -> tuple[Asked, ...]:
    """The questions asked in traces at the points of a solver.

    Raises:
        Undecided: they are not the same questions at all sizes.
    """
    groups = [_grouped(questions) for questions in asked]
    found = []
    for key in dict.fromkeys(k for g in groups for k in g):
        file, line, form = key
        place = f"{file}:{line}"
        rows = [g.get(key, []) for g in groups]
        if len(set(map(len, rows))) > 1:
            raise Undecided("it compares sizes at some sizes, and not at others", place)
        for numbers in zip(*rows, strict=True):
            sizes = tuple(_size(solver, n, place) for n in zip(*numbers, strict=True))
            found.append(Asked(file, line, form, sizes))
    return tuple(found)


class Path(NamedTuple):
    """Sizes at which all questions have the same answers.

    Attributes:
        env: one of them.
        asked: the question that led there; None for the path that others are compared with.
        symbols: those that the answers depend on.
        sizes: of these symbols, all that take this path.
    """

    env: Env
    asked: Asked | None = None
    symbols: tuple[str, ...] = ()
    sizes: frozenset[tuple[int, ...]] = frozenset()

    def __contains__(self, env: object) -> bool:
        assert isinstance(env, dict)
        return tuple([env[n] for n in self.symbols]) in self.sizes


def paths(asked: Sequence[Asked], box: ShapeDomain, known: Sequence[Env]) -> list[Path]:
    """The paths that a function takes in a box; first the one that others are compared with.

    Args:
        asked: its questions.
        box: with a largest size of each symbol.
        known: sizes in it to prefer; the first takes the path that others are compared with.

    Raises:
        Undecided: there are too many.
    """
    found = [(q, _answers(q, box)) for q in asked if q.symbols and not q.is_read]
    varying = [(q, given) for q, given in found if given.any() and not given.all()]
    if not varying:
        return [Path(known[0])]
    asked = [q for q, _ in varying]
    symbols = tuple(sorted({n for q in asked for n in q.symbols}))
    grid = _grid(box, symbols, asked[0].place)
    others = [[k for k, n in enumerate(symbols) if n not in q.symbols] for q in asked]
    answers = [np.expand_dims(a, o) for (_, a), o in zip(varying, others, strict=True)]
    table = np.stack([a.ravel() for a in np.broadcast_arrays(*answers)], 1)
    sizes = np.stack([g.ravel() for g in np.broadcast_arrays(*grid.values())], 1)
    rows, path = np.unique(table, axis=0, return_inverse=True)
    if len(rows) > _MAX_PATHS:
        raise Undecided(f"it takes {len(rows)} paths for different sizes", asked[0].place)

    def number(env: Env) -> int:
        return int(path.ravel()[(sizes == [env[n] for n in symbols]).all(1)][0])

    given = {number(env): env for env in reversed(known)}
    base = number(known[0])
    result = [Path(known[0])]
    for k in range(len(rows)):
        if k != base:
            there = frozenset(map(tuple, sizes[path.ravel() == k].tolist()))
            env = given.get(k) or {**known[0], **dict(zip(symbols, min(there), strict=True))}
            led = asked[int(np.argmax(rows[k] != rows[base]))]
            result.append(Path(env, led, symbols, there))
    return result


def _answers(asked: Asked, box: ShapeDomain) -> np.ndarray:
    """The answers of a question, with a dimension for each of its symbols in sorted order."""
    return asked.answers(_grid(box, sorted(asked.symbols), asked.place))


def _on_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers, for arrays of them."""
    if getattr(operator, function.__name__, None) is function:
        return function
    return lambda *args: np.frompyfunc(function, len(args), 1)(*args)


def _grid(box: ShapeDomain, symbols: Sequence[str], place: str) -> dict[str, np.ndarray]:
    """All sizes of some symbols in a box, each along a dimension of its own."""
    sizes = []
    for n in symbols:
        r = box.ranges[n]
        assert r.max is not None
        sizes.append(np.arange(r.min, r.max + 1, r.step))
    if math.prod(map(len, sizes)) > _MAX_SIZES:
        raise Undecided(f"it compares sizes of {', '.join(symbols)}: too many to compute", place)
    return dict(zip(symbols, np.meshgrid(*sizes, indexing="ij", sparse=True), strict=True))


def _on(grid: dict[str, np.ndarray], size: Polynomial) -> Any:
    """The values of a size at all sizes in a grid."""
    by = math.lcm(*(c.denominator for _, c in size.terms))
    terms = (int(c * by) * math.prod(grid[n] ** e for n, e in m) for m, c in size.terms)
    return sum(terms) // by


def _size(solver: Solver, numbers: tuple[Any, ...], place: str) -> Size | float:
    if len(set(numbers)) == 1:
        return numbers[0]
    size = solver.size(numbers) if all(isinstance(n, int) for n in numbers) else None
    if size is None:
        raise Undecided(f"it compares {numbers[0]}, which is no polynomial in sizes", place)
    return size


def _grouped(questions: Questions) -> dict[tuple[str, int, Any], list[tuple[Any, ...]]]:
    found: dict[tuple[str, int, Any], list[tuple[Any, ...]]] = collections.defaultdict(list)
    for q in questions:
        found[q.file, q.line, q.form].append(q.numbers)
    return dict(found)
