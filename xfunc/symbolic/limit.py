"""`Limit`: the plans of a jitted function with a memory limit."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

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
from xfunc.stages import stages
from xfunc.stages.entry import Entry
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged, counting_compiles
from xfunc.symbolic.binding import Dims, sizes_at
from xfunc.symbolic.box import Box
from xfunc.symbolic.plans import Measure, Plans, Trace
from xfunc.symbolic.polynomial import Env
from xfunc.trace.finalise import finished


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
            args, kwargs = tree.unflatten(structure, [abstract(x) for x in leaves])
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
        return of_chip(lowered(env).traced.parts)

    return plans_of(staged, module, Box({}), bytes, measure)


def plans_of(staged: Staged, trace: Trace, box: Box, bytes: int, measure: Measure) -> Plans:
    """The plans for the device in use; what is compiled to measure them is counted."""

    def counted(env: Env) -> int | None:
        with counting_compiles(staged.cache):
            return measure(env)

    chip = "cpu" if default_backend() == "cpu" else "v6e"
    return Plans(staged.name, trace, box, bytes, chip, counted)


def traced_at(
    staged: Staged,
    structure: tree.Structure,
    leaves: Sequence[object],
    dims: Sequence[Dims],
    shardings: Sequence[object],
    options: Options,
    env: Env,
) -> stages.Traced:
    """A function traced for arguments like `leaves`, with the dimensions that vary as in `env`."""
    at = [
        ShapeDtypeStruct(sizes_at(d, tuple(x.shape), env), x.dtype, x.sharding)
        if d is not None and isinstance(x, ShapeDtypeStruct)
        else x
        for x, d in zip(leaves, dims, strict=True)
    ]
    args, kwargs = tree.unflatten(structure, at)
    return stages.trace(staged, args, kwargs, shardings, options)


def of_chip(parts: stages.Parts) -> tuple[Module, tuple[int, ...]]:
    """The module that one chip runs, and its donated parameters."""
    lowering, tiles = parts.lowering, parts.tiles
    inputs = list(lowering.inputs)
    numbers = tuple(inputs.index(k) for k in sorted(parts.entry.donated) if k in inputs)
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


def abstract(x: object) -> object:
    """An argument without its values."""
    if isinstance(x, torch.Tensor):
        return ShapeDtypeStruct(tuple(x.shape), x.dtype, stages.known_sharding(x))
    return x
