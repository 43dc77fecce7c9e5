"""Plans under random memory limits, against the best of all plans and of finer cuts."""

from __future__ import annotations

import functools
import random

from benchmarks.dynamic.setting import CAP, module
from xfunc.core.ambient import Override
from xfunc.errors import OutOfMemoryError
from xfunc.hlo import Module
from xfunc.remat.symbolic_cut import SameCut
from xfunc.symbolic.plan import Plan
from xfunc.symbolic.plans import Plans, candidates, offloading
from xfunc.symbolic.polynomial import Env
from xfunc.symbolic.shape_domain import Range, ShapeDomain

ROWS, DRAWS, CHIP = 8, 40, "v6e"
BOX = ShapeDomain({"S": Range(16, CAP)})
FINER = 3, 6  # cuts that keep one part of so many, besides those among the candidates


POLICIES = candidates() | offloading() | {f"cut at 1/{n}": SameCut(1 / n) for n in FINER}


@functools.cache
def plan(name: str) -> Plan:
    """A plan, whose memory and time are found for all sizes once."""
    policy = POLICIES[name]
    return Plan(name, None if policy is None else Override(policy), _trace, BOX, CHIP)


class Known(Plans):
    """The plans under a limit, examined as `jit` does, but shared by all limits."""

    def __init__(self, limit: int) -> None:
        super().__init__("train_step", _trace, BOX, limit, CHIP)
        self._whole = False

    def _plan(self, name: str, override: Override | None) -> Plan:
        return plan(name)


def main() -> None:
    """Print the lines."""
    known = {name: plan(name) for name in POLICIES}
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
            chosen = Known(limit).choose(env)
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
