"""`Plans`: the values to keep for the backward pass, chosen for each size by a memory limit.

A plan is a policy for all checkpoints and scans of a function; a function that has none is
differentiated as if it were a checkpoint itself. The candidates go from keeping everything to
keeping nothing, over the matrix products, the minimum cut, and cuts that keep a part of the bytes;
then, where the host has separate memory, the same cuts with the kept values in it. The peak and
time of each are known for all sizes at once (`SymbolicPeak`, `Seconds`), so finding the fastest
candidate that fits a size only takes comparisons.

NOTE [unneeded plans]: finding out how much memory a plan takes at all sizes needs a few traces of
the function. So plans are examined in order, those that keep the most first, and no more once one
that fits is nearly as fast as the fastest, which recomputes nothing. One trace shows whether a plan
equals an earlier one; more are made of plans that differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

from xfunc import checkpoint_policies as cp
from xfunc.backends.devices import device_count
from xfunc.core import ambient
from xfunc.core.ambient import Override
from xfunc.core.sizes import size
from xfunc.errors import OutOfMemoryError, format_error
from xfunc.hlo.estimate.cost import CHIPS
from xfunc.remat.offloaded import Offloaded
from xfunc.remat.policies import Policy
from xfunc.remat.symbolic_cut import SameCut
from xfunc.symbolic.plan import Measure, Plan, Trace
from xfunc.symbolic.polynomial import Env
from xfunc.symbolic.shape_domain import ShapeDomain

_NEAR = 1.1  # times the limit, or the least: plans expected to hold this are measured first
_CLOSE = 1.05  # times the duration of the fastest plan: the others are not examined then
_OFFLOADED = ", offloaded"

_Key = tuple[int, bool, tuple[int, ...]]  # the limit, whether for the padded program, and sizes


def candidates() -> dict[str, Policy | None]:
    """The plans by name, in descending order of kept bytes; None: the function as written."""
    return {
        "everything": cp.everything_saveable,
        "as written": None,
        "dots": cp.dots_saveable,
        "dots_with_no_batch_dims": cp.dots_with_no_batch_dims_saveable,
        "min_cut": SameCut(None),
        **{f"cut at 1/{n}": SameCut(1 / n) for n in (2, 4, 8, 16)},
        "names": cp.save_any_names_but_these(),
        "nothing": cp.nothing_saveable,
    }


def offloading() -> dict[str, Policy | None]:
    """Further plans, which keep the residuals of others in the host's memory; see `Offloaded`."""
    return {
        name + _OFFLOADED: Offloaded(policy)
        for name, policy in candidates().items()
        if policy is not None and name != "everything"
    }


class Plans:
    """The plans of a function under a limit.

    Args:
        name: of the function.
        trace: returns its HLO at given sizes.
        box: the sizes that its symbols may have; without symbols, there is one size.
        limit: bytes that it may hold at a time, its arguments included.
        chip: one of `CHIPS`; its speed decides which plan is the fastest.
        measure: compiles the chosen plan to check its memory; None: estimates are enough.
        where: the target's name in `explain`; empty for the running device.
        measure_padded: likewise for the program of the bucket that ends at given sizes.
    """

    def __init__(
        self,
        name: str,
        trace: Trace,
        box: ShapeDomain,
        limit: int,
        chip: str = "v6e",
        measure: Measure | None = None,
        where: str = "",
        measure_padded: Measure | None = None,
    ):
        self.name, self.box, self.limit = name, box, limit
        self._trace, self._chip = trace, chip
        self._measures = {False: measure, True: measure_padded}
        self._reorders = measure is not None and chip == "cpu" and device_count() == 1
        self._where = where
        self._offloads = CHIPS[chip].host > 0
        self._waiting = candidates() | (offloading() if self._offloads else {})
        self._whole: bool | None = None
        self._chosen: dict[_Key, Plan] = {}
        self._misfits: dict[_Key, Exception | None] = {}  # why no plan fits, by sizes
        self.plans: list[Plan] = []

    def choose(self, env: Env, padded: bool = False) -> Plan:
        """The fastest plan that fits.

        Args:
            env: the sizes.
            padded: whether the program of the bucket that ends there is to fit, with its masks,
                rather than that of these sizes alone.

        Raises:
            OutOfMemoryError: none does; the error gives the smallest limit that would suffice.
        """
        key = (self.limit, padded, tuple(env.values()))
        result = self._chosen.get(key)
        if result is None:
            result = self._chosen[key] = self._fastest(env, padded)
        return result

    def misfit(self, env: Env, padded: bool = False) -> Exception | None:
        """Why no plan fits, or why the function cannot be traced at these sizes; None if one does.

        Args:
            env: the sizes.
            padded: as in `choose`.
        """
        key = (self.limit, padded, tuple(env.values()))
        if key not in self._misfits:
            try:
                self.choose(env, padded)
                self._misfits[key] = None
            except Exception as error:
                self._misfits[key] = error
        return self._misfits[key]

    def explain(self, env: Env | None = None) -> str:
        """A table of the examined plans: peak, time, and the largest size that fits."""
        at = env or self._largest()
        on, where = f" on {self._where}" * bool(self._where), f" at {_sizes(at)}" if at else ""
        lines = [f"memory_limit of {self.name}{on}: {size(self.limit)}; plans{where}"]
        rows = [("plan", "peak", "time", "fits up to")]
        for plan in self.plans:
            fits = plan.peak(at) <= self.limit
            reach = ", ".join(self._end(plan, at, n) for n in self.box.ranges)
            rows.append(
                (
                    plan.described(at),
                    size(plan.peak(at)),
                    f"{plan.seconds(at) * 1e3:.3g} ms",
                    reach or ("all" if fits else "none"),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += [
            "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows
        ]
        for plan in self.plans:
            if plan.why_one_by_one:
                lines.append(f"{plan.name} is analysed size by size: {plan.why_one_by_one}")
        if not self._offloads:
            lines.append("no plan offloads values: the host's memory is the device's")
        for (limit, padded, key), plan in self._chosen.items():
            if limit != self.limit:
                continue
            sizes = dict(zip(self.box.ranges, key, strict=True))
            lines.append(f"{_sizes(sizes) or 'chosen'}: {plan.described(sizes, padded)}")
        return "\n".join(lines)

    def _largest(self) -> Env:
        """The largest sizes; if the function refuses these, the last that a plan was chosen for."""
        top = {n: r.max if r.max is not None else r.min for n, r in self.box.ranges.items()}
        try:
            for plan in self.plans:
                plan.peak(top)
        except Exception:
            if self._chosen:
                _, _, sizes = list(self._chosen)[-1]
                return dict(zip(self.box.ranges, sizes, strict=True))
        return top

    def _fastest(self, env: Env, padded: bool) -> Plan:
        while True:
            expected = self._expected(env, padded)
            fitting = [p for p in self.plans if expected[p] <= self.limit]
            plan = min(fitting, key=lambda p: p.seconds(env), default=None)
            name = self._next(plan, env)
            if name and not (plan and plan.seconds(env) <= self._good_enough(env)):
                self._look(name, env)
                continue
            if plan:
                if self._is_news(plan, env, padded):
                    continue  # It may hold more than was estimated.
                return plan
            # Estimates may also be too high.
            least, *others = sorted(self.plans, key=expected.__getitem__)
            bound = _NEAR * max(self.limit, expected[least])
            near = [least, *(p for p in others if expected[p] <= bound)]
            if not any(self._is_news(p, env, padded) for p in near):
                self._refuse(least, env, padded)

    def _expected(self, env: Env, padded: bool) -> dict[Plan, float]:
        """The peak of each plan, as measured.

        An unmeasured peak is the estimate, corrected by measurements of other plans at these sizes.
        """
        measured = [p for p in self.plans if p.is_measured(env, padded)]
        ratio = min((p.peak(env, padded) / p.estimate(env) for p in measured), default=1.0)
        return {p: p.peak(env, padded) * (1.0 if p in measured else ratio) for p in self.plans}

    def _good_enough(self, env: Env) -> float:
        """Plans this fast are taken without examining others."""
        return _CLOSE * min(p.seconds(env) for p in self.plans)

    def _is_news(self, plan: Plan, env: Env, padded: bool) -> bool:
        """Measure how much memory a plan takes; returns whether that was unknown."""
        measure = self._measures[padded]
        return measure is not None and plan.measure(env, measure, padded)

    def _refuse(self, least: Plan, env: Env, padded: bool) -> NoReturn:
        needed = least.peak(env, padded)
        where = f" at {_sizes(env)}" * bool(env) + f" on {self._where}" * bool(self._where)
        problem = (
            f"{self.name}{where} fits no memory_limit of {self.limit} bytes ({size(self.limit)}): "
            f"the least that a plan takes is {needed} bytes ({size(needed)}), that which keeps "
            f"{least.described(env, padded)!r}"
        )
        smaller = "".join(self._reach(least, env, name) for name in self.box.ranges)
        raise OutOfMemoryError(
            format_error(problem, f"give memory_limit={needed} or more{smaller}."),
            needed,
            self.limit,
        )

    def _reach(self, plan: Plan, env: Env, symbol: str) -> str:
        """The part of the hint that says how large a symbol may be."""
        end = self._end(plan, env, symbol)
        return f", or {symbol} of at most {end.partition('=')[2]}" if "=" in end else ""

    def _end(self, plan: Plan, env: Env, symbol: str) -> str:
        """The largest size of a symbol that fits: ``S=44``, or ``no S``."""
        try:
            end = plan.largest(self.box, env, symbol, self.limit)
        except Exception:  # The function may refuse sizes that no call has had.
            return f"{symbol} unknown"
        return f"no {symbol}" if end is None else f"{symbol}={end}"

    def _next(self, fitting: Plan | None, env: Env) -> str | None:
        """The next candidate that may be faster than a plan that fits."""
        for name in self._waiting:
            base = self._base(name)  # Offloading the same takes longer.
            if not (base and fitting) or base.seconds(env) < fitting.seconds(env):
                return name
        return None

    def _base(self, name: str) -> Plan | None:
        """The examined plan that keeps a candidate's offloaded values on the device, or None."""
        base = name.removesuffix(_OFFLOADED)
        return next((p for p in self.plans if p.name == base != name), None)

    def _look(self, name: str, env: Env) -> None:
        """Examine a candidate; drop it if it equals an earlier one."""
        policy = self._waiting.pop(name)
        if policy is cp.everything_saveable and self._is_whole(env):
            return  # The function as written does that.
        if name.endswith(_OFFLOADED) and self._base(name) is None:
            return  # It would offload the same values as another plan.
        plan = self._plan(name, policy and Override(policy, self._is_whole(env)))
        if not any(
            p.estimate(env) == plan.estimate(env)
            and math.isclose(p.seconds(env), plan.seconds(env), rel_tol=1e-9)
            for p in self.plans
        ):
            self.plans.append(plan)

    def _plan(self, name: str, override: Override | None) -> Plan:
        above = self.limit if self._reorders else None
        return Plan(name, override, self._trace, self.box, self._chip, above)

    def _is_whole(self, env: Env) -> bool:
        """Whether there is no checkpoint and no scan in the function."""
        if self._whole is None:
            override = Override(cp.nothing_saveable)
            with ambient.overridden(override):
                self._trace(env)
            self._whole = not override.asked
        return self._whole


def _sizes(env: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={n}" for name, n in env.items())
