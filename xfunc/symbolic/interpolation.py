"""Symbolic HLO: a program for all sizes, from its HLO at a few of them.

A function is traced at probe sizes (see `probes`). Its HLO has the same instructions each time, or
it is not one program; each number in them is then fitted by a polynomial in the symbols, and
checked against a probe that was not used for the fit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from xfunc.core.size_questions import NONE, Questions
from xfunc.hlo import Instruction, Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.symbolic import questions
from xfunc.symbolic.numbers import Numbers, digits, is_close, taken_apart
from xfunc.symbolic.polynomial import Env, Polynomial, Ratio, Size, value
from xfunc.symbolic.printing import text_of
from xfunc.symbolic.questions import Asked
from xfunc.symbolic.sample_sizes import probes
from xfunc.symbolic.shape_domain import ShapeDomain
from xfunc.symbolic.shapes import SymbolicShape
from xfunc.symbolic.solve import Solver
from xfunc.symbolic.value_numbering import ProgramValues, Table

Fitted = Size | float | Ratio


class NoFit(Exception):
    """A function has no symbolic HLO.

    Attributes:
        reason: why.
        instruction: where that was found.
        other_program: whether the instructions differ, not only their numbers.
    """

    def __init__(
        self, reason: str, instruction: Instruction | None = None, other_program: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason, self.instruction, self.other_program = reason, instruction, other_program


@dataclasses.dataclass(frozen=True, eq=False)
class SymbolicModule:
    """HLO in which numbers depend on symbols.

    Attributes:
        module: the HLO at one size of each symbol.
        env: those sizes.
        box: the sizes that the symbols may have.
        numbers: by the id of an instruction, its numbers that may depend on sizes: see
            `Numbers.lists`.
        asked: what the function asks about sizes, as far as that is recorded.
    """

    module: Module
    env: Env
    box: ShapeDomain
    numbers: Mapping[int, Mapping[str, tuple[Fitted, ...]]]
    asked: tuple[Asked, ...] = ()

    def dims(self, i: Instruction) -> tuple[Size, ...]:
        """The dimensions of an array."""
        return self.sizes(i, "dims")

    def sizes(self, i: Instruction, what: str) -> tuple[Size, ...]:
        """The integers of one kind of an instruction; () if it has none."""
        return self.numbers[i.id].get(what, ())  # type: ignore[return-value]

    def literal(self, i: Instruction) -> Fitted | None:
        """The value of a scalar constant; None for anything else."""
        return next(iter(self.numbers[i.id].get("literal", ())), None)

    def shape(self, i: Instruction) -> SymbolicShape:
        """The shape of an instruction's result."""
        return _shaped(i.proto.shape, iter(self.dims(i)))

    def small_at(self, env: Env) -> set[str]:
        """The symbols in dimensions that are 0 or 1 at these sizes."""
        return {n for d in self._varying if d.at(env) <= 1 for n in d.symbols}

    def is_same(self, env: Env, module: Module) -> bool:
        """Whether this surely computes the same as a module of the function, at its sizes.

        Their instructions may differ: see NOTE [dimensions of size 1].
        """
        try:
            lists = {
                k: {what: tuple(_at_sizes(x, env) for x in xs) for what, xs in numbers.items()}
                for k, numbers in self.numbers.items()
            }
        except ValueError:  # A size is no whole number there.
            return False
        if any(n < 0 for numbers in lists.values() for n in numbers["dims"]):
            return False
        table = Table()
        there = {i.id: n for i, n in _instructions(module)}
        other = ProgramValues(module, there, {k: n.lists for k, n in there.items()}, table)
        here = {i.id: n for i, n in _instructions(self.module)}
        return ProgramValues(self.module, here, lists, table).key == other.key

    @functools.cached_property
    def _varying(self) -> set[Polynomial]:
        dims = (d for numbers in self.numbers.values() for d in numbers["dims"])
        return {d for d in dims if isinstance(d, Polynomial)}

    def __str__(self) -> str:
        """HLO text, with symbols in place of sizes."""
        return text_of(self)

    def at(self, env: Env, module: Module) -> SymbolicModule:
        """The same with another module of the function, traced at other sizes.

        Raises:
            NoFit: its numbers do not follow from its sizes, or it is another program.
        """
        here, there = _instructions(self.module), _instructions(module)
        found = {}
        for i, j, mine, other in _pairs(here, there):
            for what, given in other.lists.items():
                for x, n in zip(self.numbers[i.id][what], given, strict=True):
                    if not _agrees(x, n, env, j.proto.shape.element_type):
                        text = f"{what} of {j.opcode} are {given} where they should be of {x}"
                        raise NoFit(text, j)
            found[j.id] = self.numbers[i.id]
            assert mine.rest == other.rest
        return SymbolicModule(module, env, self.box, found, self.asked)


def fit(
    trace: Callable[[Env], Module],
    box: ShapeDomain,
    known: Env | None = None,
    asked: Callable[[Env], Questions] = lambda _: NONE,
) -> SymbolicModule:
    """The symbolic HLO of a function.

    Args:
        trace: returns its HLO at given sizes.
        box: the sizes that the symbols may have.
        known: sizes at which it has been traced: the result is checked there, which saves a trace.
        asked: returns what it asked about sizes when it was traced at given ones.

    Raises:
        NoFit: there is none.
    """
    traced: dict[tuple[int, ...], Module] = {}
    fixed = {n: r.min for n, r in box.ranges.items() if r.min == r.max}
    varying = ShapeDomain({n: r for n, r in box.ranges.items() if n not in fixed})

    def at(env: Env) -> Module:
        key = tuple(env[name] for name in varying.ranges)
        if key not in traced:
            traced[key] = trace({**fixed, **env})
        return traced[key]

    def fitted(check: Env | None) -> SymbolicModule:
        """See `sample_sizes`."""
        error: NoFit | None = None
        for highest in (1, 2):
            chosen = probes(varying, highest, check)
            if chosen is None:
                break
            envs, basis = chosen
            solver = Solver(envs, basis, varying)
            try:
                found = _fitted([at(e) for e in envs], envs, solver, box)
                of_sizes = questions.fit([asked({**fixed, **e}) for e in envs], solver)
                return dataclasses.replace(found, asked=of_sizes)
            except questions.Undecided as undecided:
                error = NoFit(str(undecided))
            except NoFit as misfit:
                if misfit.other_program:
                    raise
                error = misfit
        raise error or NoFit(f"{_listed(box)} may have too few sizes to learn from")

    if known is not None:
        with contextlib.suppress(NoFit):  # It may be another program at these sizes alone.
            return fitted({n: known[n] for n in varying.ranges})
    return fitted(None)


def at_one_size(module: Module, env: Env, box: ShapeDomain) -> SymbolicModule:
    """A module unchanged, in which no number depends on sizes."""
    numbers = {i.id: n.lists for i, n in _instructions(module)}
    return SymbolicModule(module, env, box, numbers)


def fit_sizes(
    shapes: Callable[[Env], Sequence[tuple[int, ...]]], box: ShapeDomain
) -> list[tuple[Size, ...]]:
    """Shapes as functions of sizes, from their values at a few sizes.

    Raises:
        NoFit: they are not polynomials, or differ between sizes.
    """
    for highest in (1, 2):
        chosen = probes(box, highest)
        if chosen is None:
            break
        envs, basis = chosen
        found = [list(map(tuple, shapes(e))) for e in envs]
        if len({tuple(map(len, x)) for x in found}) > 1:
            raise NoFit("another number of dimensions for other sizes", None, True)
        solver = Solver(envs, basis, box)
        sizes = [
            tuple(solver.size(values) for values in zip(*dims, strict=True))
            for dims in zip(*found, strict=True)
        ]
        if not any(s is None for dims in sizes for s in dims):
            return [tuple(s for s in dims if s is not None) for dims in sizes]
    raise NoFit(f"sizes of the result are not polynomials in {', '.join(box.ranges)}")


def _fitted(
    modules: Sequence[Module], envs: Sequence[Env], solver: Solver, box: ShapeDomain
) -> SymbolicModule:
    first = _instructions(modules[0])
    rows = [[(i, n)] for i, n in first]
    for module in modules[1:]:
        for row, (_, j, _, n) in zip(rows, _pairs(first, _instructions(module)), strict=True):
            row.append((j, n))
    found: dict[int, Mapping[str, tuple[Fitted, ...]]] = {}
    late = []  # Real numbers may be divided by any of the sizes.
    for row in rows:
        i, numbers = row[0]
        element_type = i.proto.shape.element_type
        if "literal" in numbers.lists and digits(element_type):
            late.append(row)
            continue
        found[i.id] = {
            what: tuple(
                _size(solver, values, i, what, envs)
                for values in zip(*(n.lists[what] for _, n in row), strict=True)
            )
            for what in numbers.lists
        }
    for row in late:
        i = row[0][0]
        values = tuple(float(n.lists["literal"][0]) for _, n in row)
        real = solver.real(values, i.proto.shape.element_type)
        if real is None:
            raise NoFit(f"a constant is {_at(values, envs)}, which is no ratio of sizes", i)
        found[i.id] = {"dims": (), "literal": (real,)}
    return SymbolicModule(modules[0], envs[0], box, found)


def _size(
    solver: Solver, values: tuple[Any, ...], i: Instruction, what: str, envs: Sequence[Env]
) -> Size:
    result = solver.size(values)
    if result is None:
        raise NoFit(f"{what} of {i.opcode} are {_at(values, envs)}, which is not a polynomial", i)
    return result


def _at(values: Sequence[float], envs: Sequence[Env]) -> str:
    shown = (
        f"{v:g} at {', '.join(f'{name}={n}' for name, n in env.items())}"
        for v, env in list(zip(values, envs, strict=True))[:3]
    )
    return "; ".join(shown)


def _instructions(module: Module) -> list[tuple[Instruction, Numbers]]:
    """All instructions of a module, each with its parts."""
    computations = {c.id: k for k, c in enumerate(module.computations)}
    result = []
    for c in module.computations:
        places = {i.id: k for k, i in enumerate(c.proto.instructions)}
        result += [(i, taken_apart(i.proto, places, computations)) for i in c.instructions]
    return result


def _pairs(
    here: Sequence[tuple[Instruction, Numbers]], there: Sequence[tuple[Instruction, Numbers]]
) -> list[tuple[Instruction, Instruction, Numbers, Numbers]]:
    """The instructions of two modules, pair by pair, if both are the same program."""
    result = []
    for (i, m), (j, n) in zip(here, there, strict=False):
        same = i.opcode == j.opcode and m.rest == n.rest and m.lists.keys() == n.lists.keys()
        if not same or (i is i.computation.root) != (j is j.computation.root):
            change = f"another {i.opcode}" if i.opcode == j.opcode else f"{j.opcode} for {i.opcode}"
            raise NoFit(f"another program for other sizes: {change}", j, True)
        result.append((i, j, m, n))
    if len(here) != len(there):
        longer = max(here, there, key=len)
        last = longer[min(len(here), len(there))][0]
        raise NoFit(f"another program for other sizes: with or without {last.opcode}", last, True)
    return result


def _agrees(x: Fitted, n: float, env: Env, element_type: int) -> bool:
    if isinstance(x, Ratio):
        return is_close(x.at(env), n, element_type)
    if isinstance(x, float):
        return is_close(x, n, element_type)
    try:
        return value(x, env) == n
    except ValueError:
        return False


def _at_sizes(x: Fitted, env: Env) -> Any:
    if isinstance(x, Polynomial):
        return value(x, env)
    return x.at(env) if isinstance(x, Ratio) else x


def _shaped(proto: pb.ShapeProto, dims: Iterator[Size]) -> SymbolicShape:
    if proto.element_type == pb.TUPLE:
        elements = tuple(_shaped(s, dims) for s in proto.tuple_shapes)
        return SymbolicShape(proto.element_type, (), elements)
    return SymbolicShape(proto.element_type, tuple(next(dims) for _ in proto.dimensions))


def _listed(box: ShapeDomain) -> str:
    return ", ".join(box.ranges)
