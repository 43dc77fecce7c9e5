"""A flat function as HLO, and its application to tensors."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence

import torch

from xfunc import config
from xfunc.backends import active
from xfunc.backends.lock import lock, turn
from xfunc.backends.placement import Placement
from xfunc.backends.protocol import Executable
from xfunc.core import ambient
from xfunc.core.avals import Aval, array_of, aval_of
from xfunc.graph import build
from xfunc.graph.dependencies import dependencies
from xfunc.graph.graph import Graph
from xfunc.hlo import Module
from xfunc.hlo.write import write
from xfunc.trace import recorder, tracing
from xfunc.trace.finished import finalize


@dataclasses.dataclass(eq=False)
class HloProgram:
    """HLO of a function ``(*tensors) -> list of tensors``.

    Attributes:
        name: of the function.
        function: a graph, or a module that returns a tuple; not to be changed.
        inputs: parameter k of the function is flat input ``inputs[k]``.
        avals: of the flat inputs.
        outputs: avals of the results.
        recompiled: see `ambient.Override`.
    """

    name: str
    function: Graph | Module
    inputs: tuple[int, ...]
    avals: tuple[Aval, ...]
    outputs: tuple[Aval, ...]
    recompiled: ambient.Recompiled | None = dataclasses.field(
        default_factory=ambient.recompiled, repr=False
    )
    _executables: dict[object, Executable] = dataclasses.field(
        default_factory=dict, repr=False, init=False
    )

    @classmethod
    def of(
        cls,
        name: str,
        function: Graph | Module,
        avals: Sequence[Aval],
        outputs: Sequence[Aval],
        inputs: Sequence[int] | None = None,
    ) -> HloProgram:
        """The `HloProgram` of a function. Without `inputs`, its parameters are the flat inputs."""
        places = range(len(avals)) if inputs is None else inputs
        return cls(name, function, tuple(places), tuple(avals), tuple(outputs))

    @classmethod
    def empty(cls, name: str, avals: Sequence[Aval]) -> HloProgram:
        """The `HloProgram` of a function without results."""
        return cls(name, Graph(name, (), ()), (), tuple(avals), ())

    @functools.cached_property
    def module(self) -> Module:
        """The HLO; not to be changed."""
        if isinstance(self.function, Module):
            return self.function
        return Module.from_bytes(write(self.function))

    @property
    def graph(self) -> Graph:
        """The function as a graph; if nothing is known of a module, as a call of it."""
        if isinstance(self.function, Graph):
            return self.function
        return self.function.graph or _opaque(self)

    @functools.cached_property
    def hlo(self) -> bytes:
        """The HLO, serialised."""
        return self.module.to_bytes()

    @functools.cached_property
    def dependencies(self) -> tuple[frozenset[int], ...]:
        """For each output, the flat inputs it is computed from."""
        found = dependencies(self.graph)
        return tuple(frozenset(self.inputs[p] for p in params) for params in found)

    def apply(
        self,
        args: Sequence[torch.Tensor],
        donated: frozenset[int] = frozenset(),
        options: tuple[tuple[str, object], ...] = (),
    ) -> list[torch.Tensor]:
        """Apply to plain tensors: one node of the enclosing trace, or one run on the device."""
        if not self.outputs:
            return []
        trace = tracing.current()
        if trace is None:
            with lock.for_run():  # A backward pass gets here without passing through a transform.
                run = self.executable(donated, active.runtime().placements(args), options)
                return run([args[i] for i in run.inputs])
        lifted = [trace.lift(args[i]) for i in self.inputs]
        outputs = recorder.apply(self.name, lifted, self.function)
        trace.register(outputs)
        return outputs

    def executable(
        self,
        donated: frozenset[int] = frozenset(),
        placements: Sequence[Placement | None] = (),
        options: tuple[tuple[str, object], ...] = (),
    ) -> Executable:
        """The compiled program, made on first use.

        Args:
            donated: flat inputs with buffers that the program may reuse.
            placements: the placement of each flat input on the devices; by default replicated.
            options: of the compiler, by name.
        """
        where = active.runtime()
        key = (where, donated, options)
        if placements or not self.inputs:
            key = (*key, placements, config.shard_as_in_scan, config.use_shardy_partitioner)
        result = self._executables.get(key)
        if result is None:
            with turn((id(self), key)), lock.let_go():
                result = self._executables.get(key) or self._made(key, donated, placements, options)
        return result

    def _made(
        self,
        key: object,
        donated: frozenset[int],
        placements: Sequence[Placement | None],
        options: tuple[tuple[str, object], ...],
    ) -> Executable:
        where = active.runtime()
        taken = map(placements.__getitem__, self.inputs) if placements else ()
        tiles = [p and p.tiles for p in taken]

        def made() -> Module:  # a new one each time: the backend may change it
            return finalize(self.graph, tiles=tiles)

        def load(module: Module) -> Executable:
            shardy = config.use_shardy_partitioner
            how = self.avals, donated, placements, options, shardy
            loaded = where.load(self.name, module, self.inputs, *how)
            compiled()
            return loaded

        result = load(made())
        if self.recompiled and where.platform() == "cpu" and where.device_count() == 1:
            numbers = [k for k, i in enumerate(self.inputs) if i in donated]
            result = self.recompiled(result, made, numbers, load)
        self._executables[key] = result
        return result


class _Thread(threading.local):
    count: Callable[[], None] | None = None


_on_compile = _Thread()


def compiled() -> None:
    """Notify the counter of compilations in this thread."""
    count = _on_compile.count
    if count is not None:
        count()


def count_compiles(count: Callable[[], None] | None) -> Callable[[], None] | None:
    """Install the counter of compilations of this thread; returns the one before."""
    before = _on_compile.count
    _on_compile.count = count
    return before


def lower(
    name: str,
    raw_inputs: Sequence[torch.Tensor],
    avals: Sequence[Aval],
    outputs: Sequence[torch.Tensor],
) -> HloProgram:
    """HLO of traced `outputs` as a function of bare placeholders, while the trace is open."""
    out_avals = tuple(aval_of(o) for o in outputs)
    if not outputs:
        return HloProgram.empty(name, avals)
    graph, inputs = recorder.lower(name, raw_inputs, outputs)
    return HloProgram.of(name, graph, avals, out_avals, inputs)


def _opaque(lowering: HloProgram) -> Graph:
    given = build.parameters([array_of(lowering.avals[i]) for i in lowering.inputs])
    types = [array_of(a) for a in lowering.outputs]
    results = build.several("call", types, tuple(given), None, (lowering.function,))
    return Graph(lowering.name, given, results)
