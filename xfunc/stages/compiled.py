"""A compiled function: for the running device, or for an absent one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from xfunc import export, tree
from xfunc.backends.active import runtime
from xfunc.backends.analysis import CompilerOutput, MemoryAnalysis
from xfunc.backends.lock import lock
from xfunc.backends.pjrt import printer
from xfunc.backends.placement import Placement, as_argument, placement_of
from xfunc.backends.protocol import Executable
from xfunc.core.avals import Aval
from xfunc.errors import TreeMismatchError, fail
from xfunc.hlo import Module
from xfunc.hlo.estimate.cost import cost
from xfunc.stages.arguments import arguments_of, avals_of, prepare
from xfunc.stages.compiler_options import compiler_options
from xfunc.stages.staging import run_staged
from xfunc.tree import PyTree

if TYPE_CHECKING:
    from xfunc.aot.buffers import Buffer
    from xfunc.aot.topology import Topology
    from xfunc.stages.stages import Lowered


class CompiledProgram(Protocol):
    """The output of a target's compiler.

    Attributes:
        topology: the devices that it is for; None for the devices of this process.
        compiler: name and version of the compiler.
    """

    @property
    def topology(self) -> Topology | None: ...

    @property
    def compiler(self) -> str: ...

    def text(self) -> str | None:
        """The optimized HLO, or None if the compiler does not provide it."""
        ...

    def costs(self) -> dict[str, float] | None:
        """Operations and memory traffic, or None if the compiler does not report them."""
        ...

    def memory(self) -> MemoryAnalysis:
        """Its use of a device's memory."""
        ...

    def largest_buffers(self, n: int) -> Sequence[Buffer] | None:
        """The largest buffers in a device's memory, or None if unknown."""
        ...

    def serialize(self) -> bytes:
        """The program for another process."""
        ...

    def call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> PyTree:
        """Run it."""
        ...


class Target(Protocol):
    """A compiler for a kind of devices, registered with `register_target`."""

    def __call__(
        self, lowered: Lowered, target: str, options: dict[str, object], timeout: float | None
    ) -> CompiledProgram:
        """Compile.

        Args:
            lowered: the function.
            target: the target that the user named.
            options: of the compiler.
            timeout: seconds that it may take; None: there is no limit.
        """
        ...


class Device(NamedTuple):
    """A device of a target.

    Attributes:
        target: the target's name.
        chip: one of `CHIPS` that is as fast.
        memory: bytes that a program may use; None: unknown.
    """

    target: str
    chip: str
    memory: int | None


_targets: dict[str, tuple[Target, Callable[[str], Device]]] = {}


def register_target(kind: str, target: Target, device: Callable[[str], Device]) -> None:
    """Register a compiler for the targets ``kind:...`` of ``Lowered.compile``.

    `device` describes the devices of a target that the user named.
    """
    _targets[kind] = target, device


def device_of(target: str) -> Device:
    """The devices of a target.

    Raises:
        ValueError: there is no such target.
    """
    return _registered(target)[1](target)


def _registered(target: str) -> tuple[Target, Callable[[str], Device]]:
    kind = target.partition(":")[0] if isinstance(target, str) else ""  # pyright: ignore[reportUnnecessaryIsInstance]
    return _targets.get(kind, _targets["tpu"])


def compile_for(
    lowered: Lowered,
    target: str | None,
    options: Mapping[str, object],
    timeout: float | None = None,
) -> Compiled:
    """See `Lowered.compile`."""
    if target is None:
        if timeout is not None:
            fail(
                ValueError,
                "compile was given a timeout, but no target",
                "leave it out: only the compiler of a target runs in a process that can be ended.",
            )
        return Compiled(lowered, Running(lowered, options))
    compiler, _ = _registered(target)
    given: dict[str, object] = dict(compiler_options(options, "compile"))
    return Compiled(lowered, compiler(lowered, target, given, timeout))


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled function: takes exactly the arguments that it was compiled for.

    Memory and costs are those of one device.

    Attributes:
        lowered: the lowered function that was compiled.
        program: the compiler's output; internal.
    """

    lowered: Lowered
    program: CompiledProgram

    @property
    def topology(self) -> Topology | None:
        """The devices that it was compiled for; None for the devices of this process."""
        return self.program.topology

    @property
    def compiler(self) -> str:
        """The compiler: ``"libtpu 0.0.21 (jax 0.7.1)"``, or the backend's name."""
        return self.program.compiler

    def as_text(self) -> str | None:
        """The HLO after the compiler's optimizations.

        None if the compiler does not provide it; torch_xla does not while `xfunc.profiler.trace` is
        recording.
        """
        return self.program.text()

    def cost_analysis(self) -> dict[str, float] | None:
        """Like `Lowered.cost_analysis`, for the optimized program.

        A fusion of several operations only counts its inputs and outputs as memory traffic. For a
        TPU target the counts are libtpu's: a loop body counts once, whatever its number of steps,
        and the inside of a custom call is not counted. None as in `as_text`.

        Source: ``jax.stages.Compiled.cost_analysis``.
        """
        return self.program.costs()

    def memory_analysis(self) -> MemoryAnalysis:
        """The program's use of the device's memory; see `MemoryAnalysis`.

        Source: ``jax.stages.Compiled.memory_analysis``.
        """
        return self.program.memory()

    def largest_buffers(self, n: int = 10) -> Sequence[Buffer] | None:
        """The n largest buffers in one device's memory and their contents, the largest first.

        Values that use the same memory at different times count once, as the largest of them. None
        for the running device: its compiler does not report them.
        """
        return self.program.largest_buffers(n)

    def serialize(self) -> bytes:
        """The program as bytes, for another process.

        For the running device, see `xfunc.export.serialize`; the program is compiled again where it
        is loaded. For a TPU target, it is libtpu's own format, which a PJRT client of the same
        version of libtpu loads on that topology (in JAX: ``Client.deserialize_executable``).
        """
        return self.program.serialize()

    def __call__(self, *args: object, **kwargs: object) -> PyTree:
        """Run it.

        Raises:
            TreeMismatchError: the arguments are not those it was compiled for.
            CompileError: it was compiled for a device that is not present.
        """
        return self.program.call(args, kwargs)


class Running:
    """A program of the running device.

    Attributes:
        entry: runs it.
    """

    topology = None

    def __init__(self, lowered: Lowered, options: Mapping[str, object]):
        self._lowered, self._parts = lowered, lowered.traced.parts
        self.compiler = runtime().name
        entry, own = self._parts.entry, compiler_options(options, "compile")
        if own:
            own = tuple(sorted({**dict(entry.compiler), **dict(own)}.items()))
            entry = dataclasses.replace(entry, compiler=own, executable=None)
        self.entry = entry
        if self._parts.lowering.outputs:
            self._executable()

    def _executable(self) -> Executable:
        lowering, tiles = self._parts.lowering, self._parts.tiles
        placements: tuple[Placement | None, ...] = ()
        if runtime().device_count() > 1:
            placements = tuple(t and placement_of(t) for t in tiles)
            placements = placements or (None,) * len(lowering.avals)
        return lowering.executable(self.entry.donated, placements, self.entry.compiler)

    def _optimised(self) -> CompilerOutput | None:
        return self._executable().optimised() if self._parts.lowering.outputs else None

    def text(self) -> str | None:
        found = self._optimised()
        return None if found is None else printer.hlo_text(found.module)

    def costs(self) -> dict[str, float] | None:
        found = self._optimised()
        return None if found is None else costs(found.module)

    def memory(self) -> MemoryAnalysis:
        found = self._optimised()
        return MemoryAnalysis() if found is None else found.memory

    def largest_buffers(self, n: int) -> None:
        return None

    def serialize(self) -> bytes:
        return export.serialize(self._lowered)

    def call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> PyTree:
        traced, staged = self._lowered.traced, self._parts.staged
        if self._parts.is_padded:
            fail(
                ValueError,
                f"this is the program of a bucket of {staged.name}, which takes padded arguments",
                "call what compile() of the whole range returns: it takes them as they are.",
            )
        for where in traced.static_positions:
            args = (*args[:where], None, *args[where:])
        leaves, structure = tree.flatten((args, kwargs))
        given = avals_of(arguments_of(staged, leaves, structure)[0])
        if structure != traced.in_tree or given != avals_of(traced.in_avals):
            fail(
                TreeMismatchError,
                f"{staged.name} was compiled for other arguments: "
                f"{_show(traced.in_tree, traced.in_avals)}, not "
                f"{_show(structure, [Aval(*a) for a in given])}",
                "call the jitted function itself, which compiles for each kind of arguments.",
            )
        leaves = [
            x if a.sharding is None else as_argument(x, a.sharding, staged.name, label)
            for x, a, label in zip(leaves, traced.in_avals, staged.labels(structure), strict=True)
        ]
        if self.entry is not self._parts.entry:
            with lock:
                ready, fixed = prepare(staged, leaves, structure)
                options = self._parts.options._replace(fixed=fixed)
                _, held = staged.key_of(structure, given, options)
                return self.entry.result(self.entry.run(ready, held))
        args, kwargs = tree.unflatten(structure, leaves)
        return run_staged(staged, args, kwargs, self._parts.options)


COSTS = ("flops", "transcendentals", "bytes accessed")


def costs(module: Module) -> dict[str, float]:
    """The cost of a program, with JAX's names."""
    found = cost(module)
    numbers = (found.flops, found.transcendentals, found.bytes_accessed)
    return {name: float(n) for name, n in zip(COSTS, numbers, strict=True)}


def _show(structure: tree.Structure, avals: Sequence[Aval]) -> str:
    args, kwargs = tree.unflatten(structure, [str(a) for a in avals])
    return f"{args} {kwargs}" if kwargs else f"{args}"
