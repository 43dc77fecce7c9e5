"""Plans under random memory limits, against the best of all plans and of finer cuts."""

from __future__ import annotations

import functools
import random

from benchmarks.dynamic.setting import CAP, module
from xfunc.core.ambient import Override
from xfunc.errors import OutOfMemoryError
from xfunc.hlo import Module
from xfunc.remat.same_cut import SameCut
from xfunc.symbolic.box import Box, Range
from xfunc.symbolic.plans import Plan, Plans, candidates
from xfunc.symbolic.polynomial import Env

ROWS, DRAWS, CHIP = 8, 40, "v6e"
BOX = Box({"S": Range(16, CAP)})
FINER = 3, 6  # cuts that keep one part of so many, besides those among the candidates


class _Known(Plans):
    """Plans that are examined in the same order, but whose memory and time are known already."""

    def __init__(self, known: dict[str, Plan], limit: int) -> None:
        super().__init__("train_step", _trace, BOX, limit, CHIP)
        self._known, self._whole = known, False

    def _plan(self, name: str, override: Override | None) -> Plan:
        return self._known[name]


@functools.cache
def all_plans() -> dict[str, Plan]:
    """The candidates and the finer cuts, with their memory and time at all sizes."""
    policies = candidates() | {f"cut at 1/{n}": SameCut(1 / n) for n in FINER}
    known = {
        name: Plan(name, None if p is None else Override(p), _trace, BOX, CHIP)
        for name, p in policies.items()
    }
    for plan in known.values():
        plan.largest(BOX, {"S": CAP}, "S", 2**30)  # This looks at all sizes.
    return known


def plans_under(limit: int) -> Plans:
    """The plans under a limit, as `jit` examines them."""
    return _Known(all_plans(), limit)


def main() -> None:
    """Print the lines."""
    known = all_plans()
    draw = random.Random(0)
    met = refused = right = 0
    costs: list[float] = []
    for _ in range(DRAWS):
        env = {"S": draw.randint(16, CAP)}
        peaks = {name: p.estimate(env) for name, p in known.items()}
        least, most = min(peaks.values()), max(peaks.values())
        limit = int(draw.uniform(0.9 * least, 1.1 * most))
        fitting = [known[name] for name, held in peaks.items() if held <= limit]
        try:
            chosen = plans_under(limit).choose(env)
        except OutOfMemoryError as error:
            refused += 1
            right += not fitting and error.required_bytes == least
        else:
            met += chosen.estimate(env) <= limit
            costs.append(chosen.seconds(env) / min(p.seconds(env) for p in fitting))
    print(f"The train step of the Llama example, {ROWS} rows of up to {CAP}.\n")
    print("| what | figure |\n|---|---|")
    print(f"| pairs of a size and a limit that some plan meets, met | {met} of {DRAWS - right} |")
    print(f"| time, against the best of {len(known)} plans | {max(costs):.3f} at most |")
    print(f"| refused, with the smallest limit that would do | {right} of {refused} |")


def _trace(env: Env) -> tuple[Module, tuple[int, ...]]:
    return module({"B": ROWS, **env}), ()
