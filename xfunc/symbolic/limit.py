"""`Limit`: the plans of a jitted function with a memory limit."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

import torch

from xfunc import tree
from xfunc.backends.devices import default_backend
from xfunc.backends.lock import lock
from xfunc.core import ambient
from xfunc.core.ambient import Override
from xfunc.core.avals import ShapeDtypeStruct
from xfunc.errors import fail, shown
from xfunc.hlo import Module
from xfunc.hlo.estimate import liveness
from xfunc.hlo.spmd.shard import per_chip
from xfunc.hlo.spmd.tiles import Tiles
from xfunc.stages import stages
from xfunc.stages.entry import Entry
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged
from xfunc.symbolic.box import Box
from xfunc.symbolic.plans import Measure, Plans, Trace
from xfunc.symbolic.polynomial import Env
from xfunc.trace.finalise import finished
from xfunc.trace.lowering import Lowering


def check(limit: object, name: str) -> None:
    """Raise unless it is a number of bytes, or None."""
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit > 0):
        return
    problem = f"{name} was given memory_limit={shown(limit)}"
    fail(ValueError, problem, "give a positive whole number of bytes, such as 14 * 2**30.")


class Limit:
    """Chooses a plan for each kind of arguments of a function.

    Args:
        staged: the function.
        bytes: the memory that its program may use on a device.
    """

    def __init__(self, staged: Staged, bytes: int):
        self._staged, self._bytes = staged, bytes
        self._plans: dict[object, Plans] = {}

    def override(
        self,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        options: Options,
        wanted: Sequence[object],
    ) -> Override | None:
        """The override of the function's policies for a call, if one is needed.

        Raises:
            OutOfMemoryError: no plan fits.
        """
        leaves, structure = tree.flatten((args, kwargs))
        kinds = tuple([(x.shape, x.dtype) if _is_array(x) else type(x) for x in leaves])
        function = self._staged.function_value()[0]
        key = (function, structure, kinds, options.static, ambient.modes())
        plans = self._plans.get(key)
        if plans is None:
            args, kwargs = tree.unflatten(structure, [_abstract(x) for x in leaves])
            options = options._replace(donated=fixed(options))
            with lock:
                plans = _plans(self._staged, self._bytes, args, kwargs, options, wanted)
                plans.choose({})
            self._plans[key] = plans
        return plans.choose({}).override

    def explain(self) -> str:
        """The plans for each kind of arguments."""
        return "\n".join(plans.explain() for plans in self._plans.values())


def _plans(
    staged: Staged,
    bytes: int,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    options: Options,
    wanted: Sequence[object],
) -> Plans:
    def lowered(_: Env) -> stages.Lowered:
        return stages.trace(staged, args, kwargs, wanted, options).lower()

    def measure(env: Env) -> int | None:
        return lowered(env).compile().memory_analysis().peak_memory_in_bytes

    def module(env: Env) -> tuple[Module, tuple[int, ...]]:
        parts = lowered(env).traced.parts
        return of_chip(parts.lowering, parts.entry.donated, parts.tiles)

    return plans_of(staged.name, module, Box({}), bytes, measure)


def plans_of(name: str, trace: Trace, box: Box, bytes: int, measure: Measure) -> Plans:
    """The plans for the device in use."""
    return Plans(name, trace, box, bytes, "cpu" if default_backend() == "cpu" else "v6e", measure)


def of_chip(
    lowering: Lowering, donated: Collection[int], tiles: Sequence[Tiles | None] = ()
) -> tuple[Module, tuple[int, ...]]:
    """The module that one chip runs, and its donated parameters."""
    inputs = list(lowering.inputs)
    numbers = tuple(inputs.index(k) for k in sorted(donated) if k in inputs)
    module = finished(lowering.module, tiles=[tiles[k] for k in inputs] if tiles else ())
    return per_chip(liveness.prepared(module)) if any(tiles) else module, numbers


def held_by(entry: Entry) -> int | None:
    """The memory of an entry's compiled program, on one device; None if not reported."""
    found = entry.program.lowering.executable(entry.donated).optimised()
    return None if found is None else found.memory.peak_memory_in_bytes


def fixed(options: Options) -> Hashable:
    """The arguments to donate, without holding on to the arguments."""
    found = options.donated()
    return lambda: found


def _is_array(x: object) -> bool:
    return isinstance(x, (torch.Tensor, ShapeDtypeStruct))


def _abstract(x: object) -> object:
    if isinstance(x, torch.Tensor):
        return ShapeDtypeStruct(tuple(x.shape), x.dtype, stages.known_sharding(x))
    return x
