"""The duration of a program at all sizes, by a roofline model."""

from __future__ import annotations

import math

import numpy as np

from xfunc.graph.opcodes import FREE
from xfunc.hlo import Computation, Instruction, Module, Shape
from xfunc.hlo.estimate.cost import CHIPS, running, trip_count
from xfunc.symbolic.interpolation import SymbolicModule
from xfunc.symbolic.polynomial import Env, Polynomial, as_polynomial
from xfunc.symbolic.shapes import SymbolicShape


class Seconds:
    """Seconds that one run takes on a chip: for each instruction, its arithmetic or memory traffic.

    Both are polynomials; where they are not, as for a sort, their values at one size are used.

    Args:
        symbolic: the program.
        chip: one of `CHIPS`.
    """

    def __init__(self, symbolic: SymbolicModule, chip: str = "v6e"):
        speed, module = CHIPS[chip], _with_sizes(symbolic)
        times = _times(symbolic)
        known: dict[tuple[Polynomial, ...], int] = {}  # how many instructions have that cost
        # An instruction called from several places is listed several times; its `times` count them.
        unique = {i: cost for i, cost, _ in running(module)}
        for i, cost in unique.items():
            if i.opcode not in FREE:
                n = times[i.computation.id]
                arithmetic = _polynomial(cost.flops + cost.transcendentals) * n
                traffic = _polynomial(cost.bytes_accessed) * n
                moved = _polynomial(cost.host_bytes) * n
                key = arithmetic, traffic, moved
                known[key] = known.get(key, 0) + 1
        found = {m for costs in known for p in costs for m, _ in p.terms}
        self._monomials = sorted(found)
        self._arithmetic = self._rows([a for a, _, _ in known], speed.flops)
        self._traffic = self._rows([t for _, t, _ in known], speed.bytes)
        self._moved = self._rows([m for _, _, m in known], speed.host or math.inf)
        self._counts = np.array([*known.values()], dtype=np.float64)

    def at(self, env: Env) -> float:
        """The seconds for given values of the symbols."""
        values = [math.prod(env[name] ** e for name, e in m) for m in self._monomials]
        m = np.array(values, dtype=np.float64)
        own = np.maximum(self._arithmetic @ m, self._traffic @ m)
        return float((own + self._moved @ m) @ self._counts)

    def _rows(self, polynomials: list[Polynomial], speed: float) -> np.ndarray:
        result = np.zeros((len(polynomials), len(self._monomials)))
        for row, p in zip(result, polynomials, strict=True):
            for m, c in p.terms:
                row[self._monomials.index(m)] = float(c) / speed
        return result


class _Size(int):
    """A size at one shape that knows its polynomial."""

    polynomial: Polynomial

    @classmethod
    def of(cls, value: int, polynomial: Polynomial) -> _Size:
        self = cls(value)
        self.polynomial = polynomial
        return self

    def __add__(self, other: int) -> _Size:
        return _Size.of(int(self) + int(other), self.polynomial + _polynomial(other))

    def __neg__(self) -> _Size:
        return _Size.of(-int(self), -self.polynomial)

    def __sub__(self, other: int) -> _Size:
        return self + -other

    def __rsub__(self, other: int) -> _Size:
        return -self + other

    def __mul__(self, other: object) -> _Size:
        if not isinstance(other, int):
            return NotImplemented
        return _Size.of(int(self) * int(other), self.polynomial * _polynomial(other))

    def __floordiv__(self, other: int) -> int:
        divided = self.polynomial.divided(_polynomial(other))
        value = int(self) // int(other)
        return value if divided is None else _Size.of(value, divided)

    __radd__, __rmul__ = __add__, __mul__


def _polynomial(x: int) -> Polynomial:
    return x.polynomial if isinstance(x, _Size) else Polynomial.constant(int(x))


def _with_sizes(symbolic: SymbolicModule) -> Module:
    """The program, with dimensions that know their polynomials."""
    module = Module(symbolic.module.proto)
    known: dict[SymbolicShape, _Shape] = {}
    for theirs, own in zip(symbolic.module.computations, module.computations, strict=True):
        for i, j in zip(theirs.instructions, own.instructions, strict=True):
            shape = symbolic.shape(i)
            if shape not in known:
                known[shape] = _Shape.of(shape, symbolic.env)
            j.shape = known[shape]
    return module


class _Shape(Shape):
    """A shape with dimensions of type `_Size`."""

    @classmethod
    def of(cls, shape: SymbolicShape, env: Env) -> _Shape:
        here = shape.at(env)
        self = cls.__new__(cls)
        dims = tuple(
            _Size.of(n, as_polynomial(d)) for n, d in zip(here.dims, shape.dims, strict=True)
        )
        self._set(here.element_type, dims, tuple(cls.of(e, env) for e in shape.elements))
        if not shape.is_tuple:
            object.__setattr__(self, "_bytes", _Size.of(here.bytes, as_polynomial(shape.bytes)))
        return self

    @property
    def bytes(self) -> int:
        return sum(e.bytes for e in self.elements) if self.is_tuple else self.__dict__["_bytes"]


def _times(symbolic: SymbolicModule) -> dict[int, Polynomial]:
    """How often each computation runs, by its id."""
    result: dict[int, Polynomial] = {}

    def add(c: Computation, n: Polynomial) -> None:
        result[c.id] = result.get(c.id, Polynomial(())) + n
        for i in c.instructions:
            if i.opcode in ("while", "call", "conditional"):
                for inner in i.called_computations:
                    add(inner, n * _trips(symbolic, i) if i.opcode == "while" else n)

    add(symbolic.module.entry, Polynomial.constant(1))
    return result


def _trips(symbolic: SymbolicModule, loop: Instruction) -> Polynomial:
    """How often a loop runs: up to a bound that may depend on sizes."""
    here = trip_count(loop) or 1
    root = loop.called_computations[1].root
    bound = symbolic.literal(root.operands[1]) if len(root.operands) == 2 else None
    if not isinstance(bound, Polynomial):
        return Polynomial.constant(here)
    return bound - (int(bound.at(symbolic.env)) - here)
