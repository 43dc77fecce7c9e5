"""The peak of a program's memory over all sizes at once.

The memory held at each step, in one order of the steps, is a polynomial in the symbols, and the
peak is the upper envelope of these: the largest of them at each size. The order of the steps, and
which buffers share memory, depend on comparisons, so there is one such envelope for each of a few
parts of the box; see NOTE [an analysis of one shape, for many]. At each size the peak equals that
of `xfunc.hlo.estimate.liveness.peak`.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Sequence

import numpy as np

from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.estimate import liveness
from xfunc.hlo.estimate.buffers import Step
from xfunc.hlo.estimate.occupancy import STARTS, Found, Task, held
from xfunc.hlo.estimate.schedule import just_in_time
from xfunc.symbolic.interpolation import SymbolicModule, fit
from xfunc.symbolic.polynomial import Env
from xfunc.symbolic.shape_domain import ShapeDomain
from xfunc.symbolic.symbolic_int import (
    Basis,
    Conditions,
    Judge,
    Terms,
    Tracked,
    TrackedModule,
    without_asking,
)

Order = Callable[[Task], Sequence[Step]]

ORDERS: tuple[Order, ...] = (
    *STARTS,
    *(lambda task, start=start: just_in_time(start(task)) for start in STARTS),
)


def prepared(
    trace: Callable[[Env], Module], box: ShapeDomain, known: Env | None = None
) -> SymbolicModule:
    """The symbolic HLO of a function, prepared for measuring its memory; see `fit`.

    Raises:
        NoFit: there is none.
    """
    return fit(lambda env: _without_data(liveness.prepared(trace(env))), box, known)


def _without_data(module: Module) -> Module:
    """The module without the contents of its constant arrays, which do not matter here."""
    proto = pb.HloModuleProto()
    proto.CopyFrom(module.proto)
    for c in proto.computations:
        for i in c.instructions:
            if i.opcode == "constant" and i.shape.dimensions:
                i.ClearField("literal")
    return Module(proto)


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """The memory held with one order of the steps, in the part of a box where conditions hold.

    Attributes:
        conditions: define that part.
        terms: those of the polynomials that are the largest somewhere.
    """

    conditions: Conditions
    terms: np.ndarray

    def at(self, monomials: np.ndarray) -> int:
        """The peak where the monomials have these values."""
        return int((self.terms @ monomials).max())


class SymbolicPeak:
    """The peak of a program over a box.

    Args:
        symbolic: the program, as `prepared` makes it.
        donated: the parameters with memory that results may reuse.
        orders: the candidates; the best is taken at each size.
    """

    def __init__(
        self,
        symbolic: SymbolicModule,
        donated: Sequence[int] = (),
        orders: Sequence[Order] = ORDERS,
    ):
        self._module, self._donated = TrackedModule(symbolic), tuple(donated)
        self._orders = orders
        self._pieces: list[list[Piece]] = [[] for _ in orders]
        self._judge = Judge(self._module.basis, symbolic.box)
        self._lock = threading.Lock()
        self.basis, self.box = self._module.basis, symbolic.box

    def at(self, env: Env) -> int:
        """The peak where the symbols have these values."""
        monomials = self.basis.at(env)
        return min(self._piece(k, env, monomials).at(monomials) for k in range(len(self._orders)))

    def pieces(self, env: Env) -> list[Piece]:
        """For each order, the piece that applies there."""
        monomials = self.basis.at(env)
        return [self._piece(k, env, monomials) for k in range(len(self._orders))]

    def along(self, env: Env, symbol: str, sizes: np.ndarray) -> np.ndarray:
        """The peaks along a symbol, from the pieces that apply at `env`: exact around there."""
        columns = []
        for m in self.basis.monomials:
            rest = math.prod(env[name] ** e for name, e in m if name != symbol)
            columns.append(rest * sizes ** dict(m).get(symbol, 0))
        monomials = np.array(columns, dtype=np.int64)
        return np.min([(p.terms @ monomials).max(axis=0) for p in self.pieces(env)], axis=0)

    @property
    def known(self) -> int:
        """How many pieces there are so far."""
        return sum(map(len, self._pieces))

    def _piece(self, order: int, env: Env, monomials: np.ndarray) -> Piece:
        for piece in self._pieces[order]:
            if piece.conditions.at(monomials):
                return piece
        with self._lock:
            facts = self._module.at(env)
            task = liveness.task_of(self._module.module.entry, self._donated)
            task = dataclasses.replace(task, exceeds=without_asking)
            found = held(self._orders[order](task), task)
            given = sum(p.bytes for p in self._module.module.entry.parameters)
            points = _points(found, given, self.basis)
            conditions = self._judge.conditions(facts)
            piece = Piece(conditions, np.array(upper(points, self.basis, self.box)))
            self._pieces[order].append(piece)
        return piece


def _points(found: Found, given: int, basis: Basis) -> list[Terms]:
    """The total memory held at each step; each polynomial is listed once."""
    constant = (0,) * (len(basis.monomials) - 1)
    values = [given + n for n, _ in found.points] or [given]
    return [*{v.terms if isinstance(v, Tracked) else (v, *constant): None for v in values}]


def upper(points: Sequence[Terms], basis: Basis, box: ShapeDomain) -> list[Terms]:
    """The polynomials that no other is known to dominate throughout the box."""
    somewhere = np.array([basis.at(c) for c in samples(box)])
    values = np.array(points, dtype=np.float64) @ somewhere.T
    terms = np.array(points, dtype=np.float64)
    positive = all(r.min >= 0 for r in box.ranges.values())
    kept: list[int] = []

    def dominates(q: int, p: int) -> bool:
        if np.any(values[q] < values[p]):
            return False
        if positive and np.all(terms[q] >= terms[p]):
            return True
        difference = tuple(a - b for a, b in zip(points[q], points[p], strict=True))
        return box.never_negative(basis.polynomial(difference)) is True

    for k in np.argsort(-values.max(axis=1), kind="stable"):  # Few are above the first ones.
        p = int(k)
        if not any(dominates(q, p) for q in kept):
            kept = [*(q for q in kept if not dominates(p, q)), p]
    return [points[k] for k in kept]


def samples(box: ShapeDomain) -> list[Env]:
    """The corners of a box, and sizes inside: a third and a thirtieth of the way up."""
    result = list(box.corners())
    for part in (1 / 3, 1 / 30):
        inner = {}
        for name, r in box.ranges.items():
            top = r.min + 4096 * r.step if r.max is None else r.max
            inner[name] = r.min + int((top - r.min) * part) // r.step * r.step
        result.append(inner)
    return result
