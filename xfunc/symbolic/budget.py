"""`Limit`: the plans of a jitted function with a memory limit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch

from xfunc import tree
from xfunc.backends.devices import default_backend
from xfunc.backends.lock import lock, turn
from xfunc.core import ambient
from xfunc.core.ambient import Override
from xfunc.core.avals import ShapeDtypeStruct
from xfunc.errors import OutOfMemoryError, fail, short_repr
from xfunc.hlo import Module
from xfunc.hlo.estimate import liveness
from xfunc.hlo.spmd.shard import per_chip
from xfunc.stages import stages
from xfunc.stages.compiled import Compiled, Device, device_of
from xfunc.stages.entry import Entry
from xfunc.stages.options import Options
from xfunc.stages.staging import Staged, counting_compiles
from xfunc.symbolic.binding import Dims, sizes_at
from xfunc.symbolic.plans import Measure, Plans, Trace
from xfunc.symbolic.polynomial import Env
from xfunc.symbolic.shape_domain import ShapeDomain
from xfunc.trace.finished import finalize


def check(limit: object, name: str) -> None:
    """Raise unless it is a number of bytes, or None."""
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit > 0):
        return
    problem = f"{name} was given memory_limit={short_repr(limit)}"
    fail(ValueError, problem, "give a positive whole number of bytes, such as 14 * 2**30.")


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """Absent devices that a function is compiled for; see `Lowered.compile`.

    Attributes:
        name: as the user wrote it.
        options: of the compiler.
        timeout: of the compiler.
    """

    name: str
    options: Mapping[str, object] | None = None
    timeout: float | None = None

    @property
    def device(self) -> Device:
        """The kind of the devices."""
        return device_of(self.name)

    def compile(self, lowered: stages.Lowered) -> Compiled:
        """Compile for it."""
        return stages.Lowered.compile(lowered, self.name, self.options, self.timeout)

    def held(self, lowered: stages.Lowered) -> int | None:
        """The memory that a program takes on one device; more than it has, if it does not fit."""
        try:
            return self.compile(lowered).memory_analysis().peak_memory_in_bytes
        except OutOfMemoryError as error:
            return max(error.required_bytes or 0, (self.device.memory or 0) + 1)


class Planned(stages.Lowered):
    """A function lowered under a limit: with the plan for the devices that it is compiled for.

    Asked for anything else, it is the function with the plan for the running device.
    """

    _traced: Callable[[Target | None], stages.Traced]

    def __init__(self, traced: Callable[[Target | None], stages.Traced]):
        object.__setattr__(self, "_traced", traced)

    @functools.cached_property
    def traced(self) -> stages.Traced:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._traced(None)

    def compile(
        self,
        target: str | None = None,
        compiler_options: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Compiled:
        if target is None:
            return super().compile(target, compiler_options, timeout)
        found = Target(target, compiler_options, timeout)
        return found.compile(self._traced(found).lower())


class Planning(NamedTuple):
    """The target to plan a function for.

    Attributes:
        bytes: the memory that a program may use on a device.
        note: called with its plans, which `explain` will show.
    """

    bytes: int
    note: Callable[[Plans], None]


class Call(NamedTuple):
    """The call to trace a function for.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        options: how it is traced.
        wanted: the shardings that it requires of flat arguments; some may be None.
    """

    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    options: Options
    wanted: Sequence[object]

    def trace(self, staged: Staged) -> stages.Traced:
        """The function traced for it."""
        return stages.trace(staged, self.args, self.kwargs, self.wanted, self.options)

    def without_data(self) -> Call:
        """The same for arguments that hold on to no data."""
        args, kwargs = tree.map(abstract, (self.args, self.kwargs))
        options = self.options._replace(donated=fixed(self.options))
        return Call(args, kwargs, options, self.wanted)


class Limit:
    """Chooses a plan for each kind of arguments of a function.

    Args:
        staged: the function.
        bytes: the memory that its program may use on a device.
    """

    def __init__(self, staged: Staged, bytes: int):
        self._staged, self._bytes = staged, bytes
        self._plans: dict[object, Plans] = {}

    def override(self, call: Call, target: Target | None = None) -> Override | None:
        """The override of the function's policies for a call, if one is needed.

        Args:
            call: the call to trace.
            target: the device to compile for; None: the running device.

        Raises:
            OutOfMemoryError: no plan fits.
        """
        leaves, structure = tree.flatten((call.args, call.kwargs))
        kinds = tuple([(x.shape, x.dtype) if _is_array(x) else type(x) for x in leaves])
        with lock:
            function = self._staged.function_value()[0]
        where = target and (target.device, str(target.options))
        key = (function, structure, kinds, call.options.static, ambient.context_key(), where)
        plans = self._plans.get(key)
        if plans is None:
            with lock, turn((self, key)):
                plans = self._plans.get(key)
                if plans is None:
                    plans = self._plans_of(call.without_data(), target)
                    plans.choose({})
                    self._plans[key] = plans
        return plans.choose({}).override

    def lowered(self, call: Call) -> Planned:
        """The function lowered for a call; see `override`."""
        call = call.without_data()
        call.trace(self._staged)  # Its errors are raised now.

        @within_here
        def traced(target: Target | None) -> stages.Traced:
            with ambient.overridden(self.override(call, target)):
                return call.trace(self._staged)

        return Planned(traced)

    def note(self, plans: Plans) -> None:
        """Show further plans in `explain`."""
        self._plans[object()] = plans

    def explain(self) -> str:
        """The plans for each kind of arguments."""
        return "\n".join(plans.explain() for plans in self._plans.values())

    def _plans_of(self, call: Call, target: Target | None) -> Plans:
        def lowered(_: Env) -> stages.Lowered:
            return call.trace(self._staged).lower()

        def measure(env: Env) -> int | None:
            if target is not None:
                return target.held(lowered(env))
            return lowered(env).compile().memory_analysis().peak_memory_in_bytes

        def module(env: Env) -> tuple[Module, tuple[int, ...]]:
            return of_chip(lowered(env).traced.parts)

        return plans_of(self._staged, module, ShapeDomain({}), self._bytes, measure, target)


def plans_of(
    staged: Staged,
    trace: Trace,
    box: ShapeDomain,
    bytes: int,
    measure: Measure,
    target: Target | None = None,
    measure_padded: Measure | None = None,
) -> Plans:
    """The plans for a target, or for the device in use.

    Programs compiled for the device in use to measure them are counted.
    """

    def counted(measure: Measure) -> Measure:
        def run(env: Env) -> int | None:
            with counting_compiles(staged.cache):
                return measure(env)

        return run

    if target is not None:
        where, chip, memory = target.device
        bytes = bytes if memory is None else min(bytes, memory)
        return Plans(staged.name, trace, box, bytes, chip, measure, where)
    chip = "cpu" if default_backend() == "cpu" else "v6e"
    of_padded = measure_padded and counted(measure_padded)
    return Plans(staged.name, trace, box, bytes, chip, counted(measure), "", of_padded)


T = TypeVar("T")


def within_here(f: Callable[[Target | None], T]) -> Callable[[Target | None], T]:
    """A function bound to the current context, such as the mesh in use."""
    here = ambient.key()

    def run(target: Target | None) -> T:
        before = ambient.restore(here)
        try:
            return f(target)
        finally:
            ambient.restore(before)

    return run


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
    with ambient.asking_sizes():
        return stages.trace(staged, args, kwargs, shardings, options)


def of_chip(parts: stages.Parts) -> tuple[Module, tuple[int, ...]]:
    """The module that one chip runs, and its donated parameters."""
    lowering, tiles = parts.lowering, parts.tiles
    inputs = list(lowering.inputs)
    numbers = tuple(inputs.index(k) for k in sorted(parts.entry.donated) if k in inputs)
    module = finalize(lowering.graph, tiles=[tiles[k] for k in inputs] if tiles else ())
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
