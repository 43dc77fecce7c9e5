"""`Plan`: a policy for all checkpoints and scans of a function, with its memory and time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from xfunc.backends.protocol import Executable
from xfunc.core import ambient
from xfunc.core.ambient import Override
from xfunc.graph.opcodes import FREE
from xfunc.hlo import Instruction, Module
from xfunc.hlo.estimate import liveness
from xfunc.hlo.estimate.cost import CHIPS, roofline, running
from xfunc.hlo.passes.offload import without_offload
from xfunc.symbolic.duration import Seconds
from xfunc.symbolic.interpolation import NoFit
from xfunc.symbolic.peak_bound import SymbolicPeak, prepared
from xfunc.symbolic.polynomial import Env
from xfunc.symbolic.schedule import arranged
from xfunc.symbolic.shape_domain import ShapeDomain

Trace = Callable[[Env], tuple[Module, tuple[int, ...]]]
"""Returns the HLO at given sizes, and its donated parameters."""
Measure = Callable[[Env], int | None]
"""Compiles at given sizes; returns the memory that the program uses, if the compiler reports it."""

_Key = tuple[bool, tuple[int, ...]]  # whether the program is padded, and sizes

_ALONE = 3  # sizes of a plan that are analysed by themselves
_FAR = 1.1  # times the estimate: if XLA's order takes more, another is tried
_UNBOUNDED = 2**20  # where the search for the largest size ends if a symbol has no maximum


class Plan:
    """A policy, and the memory and time that the function takes under it.

    They are found for all sizes at once when the largest that fits is asked for, or a fourth size:
    that takes about as many traces as three sizes by themselves.

    Attributes:
        name: the candidate's name.
        override: replaces all other policies while the function is traced and called.
        why_one_by_one: the reason for analysing each size separately, or None.
    """

    def __init__(
        self,
        name: str,
        override: Override | None,
        trace: Trace,
        box: ShapeDomain,
        chip: str,
        reorder_above: int | None = None,  # bytes
    ):
        # A program that needs more only because of XLA's order of its steps gets another order.
        if reorder_above is not None:
            override = override or Override(None)
            override.recompiled = functools.partial(self._in_better_order, reorder_above)
        self.name, self.override, self._trace, self._chip = name, override, trace, chip
        self.why_one_by_one: str | None = None
        self._box, self._is_fitted = box, not box.ranges
        self._found: tuple[SymbolicPeak, Seconds] | None = None
        self._measured: dict[_Key, int] = {}
        self._in_order: set[_Key] = set()  # sizes at which the program is not in XLA's order
        self._reordered = 0
        self._known: dict[tuple[int, ...], tuple[int, float]] = {}

    def traced(self, env: Env) -> tuple[Module, tuple[int, ...]]:
        """The HLO under the plan, and its donated parameters."""
        with ambient.overridden(self.override):
            module, donated = self._trace(env)
        return module if CHIPS[self._chip].host else without_offload(module), donated

    def peak(self, env: Env, padded: bool = False) -> int:
        """The peak in bytes: as compiled, or else as estimated.

        Args:
            env: the sizes.
            padded: whether that of the program for a bucket is meant, with masks, rather than that
                of the program for these sizes alone.
        """
        return self._measured.get(_key(env, padded)) or self.estimate(env)

    def estimate(self, env: Env) -> int:
        """The peak in bytes, as estimated."""
        return self._of(env)[0]

    def seconds(self, env: Env) -> float:
        """The duration of a run according to the roofline model."""
        return self._of(env)[1]

    def measure(self, env: Env, measure: Measure, padded: bool = False) -> bool:
        """Compile it and record its measured memory; returns whether that is news."""
        key = _key(env, padded)
        if key in self._measured:
            return False
        before = self._reordered
        with ambient.overridden(self.override):
            found = measure(env)
        self._measured[key] = self._of(env)[0] if found is None else found
        if self._reordered > before:
            self._in_order.add(key)
        return True

    def described(self, env: Env, padded: bool = False) -> str:
        """Its name, and whether the program at these sizes is in an order that is given to XLA."""
        return self.name + ", in order" * (_key(env, padded) in self._in_order)

    def is_measured(self, env: Env, padded: bool = False) -> bool:
        """Whether `peak` is as compiled."""
        return _key(env, padded) in self._measured

    def largest(self, box: ShapeDomain, env: Env, symbol: str, limit: int) -> int | None:
        """The largest size of a symbol that fits a limit, given the others; None if none does.

        It is where the envelope around it meets the limit.
        """
        self._fit()
        r = box.ranges[symbol]
        top = r.max if r.max is not None else max(_UNBOUNDED // r.step * r.step, r.min)
        sizes = np.arange(r.min, top + 1, r.step)

        def fits(k: int) -> bool:
            return self.peak({**env, symbol: int(sizes[k])}) <= limit

        low, high = -1, len(sizes)  # positions known to fit, and known not to
        at = len(sizes) - 1
        while high - low > 1:
            at = min(max(at, low + 1), high - 1)
            if fits(at):
                low = at
            else:
                high = at
            if self._found is None:
                at = (low + high) // 2
            else:
                here = {**env, symbol: int(sizes[at])}
                fitting = np.flatnonzero(self._found[0].along(here, symbol, sizes) <= limit)
                guess = int(fitting[-1]) if len(fitting) else -1
                at = guess + 1 if guess <= low else guess
        return int(sizes[low]) if low >= 0 else None

    def _in_better_order(
        self,
        limit: int,
        compiled: Executable,
        made: Callable[[], Module],
        donated: Sequence[int],
        load: Callable[[Module], Executable],
    ) -> Executable:
        """See `Override.recompiled`: the program that needs less memory."""
        held = _held(compiled)
        if held is None or held <= limit:
            return compiled
        module = made()
        if held <= _FAR * liveness.peak(liveness.prepared(module), donated).bytes:
            return compiled
        other = load(arranged(module))
        if (_held(other) or held) >= held:
            return compiled
        self._reordered += 1
        return other

    def _of(self, env: Env) -> tuple[int, float]:
        key = tuple(env.values())
        if key not in self._known:
            if len(self._known) >= _ALONE:
                self._fit()
            if self._found is not None:
                of_memory, of_time = self._found
                self._known[key] = of_memory.at(env), of_time.at(env)
            else:
                module, donated = self.traced(env)
                flat = liveness.prepared(module)
                rows = [roofline(c, self._chip) * n for i, c, n in running(flat) if _works(i)]
                self._known[key] = liveness.peak(module, donated).bytes, math.fsum(rows)
        return self._known[key]

    def _fit(self) -> None:
        """Find memory and time at all sizes, once."""
        if self._is_fitted:
            return
        self._is_fitted = True
        donated: list[tuple[int, ...]] = []

        def module(env: Env) -> Module:
            result, numbers = self.traced(env)
            donated[:] = [numbers]
            return result

        try:
            known = [dict(zip(self._box.ranges, k, strict=True)) for k in self._known]
            symbolic = prepared(module, self._box, *known[:1])
            self._found = SymbolicPeak(symbolic, donated[0]), Seconds(symbolic, self._chip)
        except NoFit as error:
            self.why_one_by_one = error.reason


def _key(env: Env, padded: bool) -> _Key:
    return padded, tuple(env.values())


def _held(compiled: Executable) -> int | None:
    found = compiled.optimised()
    return None if found is None else found.memory.peak_memory_in_bytes


def _works(i: Instruction) -> bool:
    return i.opcode not in FREE
