"""The stages of a jitted function as plain objects: traced, lowered, compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch

from xfunc import export, tree
from xfunc.backends.analysis import MemoryAnalysis, Optimised
from xfunc.backends.protocol import Executable
from xfunc.backends.torch_xla import stablehlo
from xfunc.backends.torch_xla.literals import from_numpy
from xfunc.backends.torch_xla.placement import (
    Placement,
    as_argument,
    known_sharding,
    placement_of,
    placements,
)
from xfunc.backends.torch_xla.runtime import device_count, text_of
from xfunc.core.avals import NUMBERS, Aval, ShapeDtypeStruct
from xfunc.errors import ShardingError, TreeMismatchError, fail, shown
from xfunc.hlo import Module
from xfunc.hlo.estimate.cost import cost
from xfunc.hlo.spmd.tiles import Tiles
from xfunc.stages.arguments import avals_of, prepare
from xfunc.stages.entry import Entry
from xfunc.stages.options import PLAIN, Options
from xfunc.stages.staging import Staged, run_staged
from xfunc.trace import portable
from xfunc.trace.finalise import finished
from xfunc.trace.lowering import Lowering

if TYPE_CHECKING:
    from xfunc.aot import CompiledAhead


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """What a traced function is made of: for modules of the library.

    Attributes:
        staged: the function.
        entry: its program.
        options: what it was traced with.
        tiles: how arguments, captures and what the program holds are divided; () if none is.
    """

    staged: Staged
    entry: Entry
    options: Options
    tiles: tuple[Tiles | None, ...] = ()

    @property
    def lowering(self) -> Lowering:
        """The program as HLO."""
        return self.entry.program.lowering


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A function traced for given arguments.

    Attributes:
        in_tree: structure of ``(args, kwargs)``.
        in_avals: of its leaves.
        out_tree: structure of the result.
        parts: what it is made of; not for users.
    """

    in_tree: tree.Structure
    in_avals: tuple[Aval, ...]
    parts: Parts

    @property
    def out_tree(self) -> tree.Structure:
        return self.parts.entry.out_tree

    @property
    def out_info(self) -> Any:
        """The result as a tree of `ShapeDtypeStruct`."""
        return tree.unflatten(self.out_tree, self.parts.entry.outputs)

    @property
    def static_positions(self) -> list[int]:
        """Positions of the arguments that are part of the program."""
        return [i for i, *_ in self.parts.options.static or () if isinstance(i, int)]

    def lower(self) -> Lowered:
        """The HLO of the function."""
        return Lowered(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Lowered:
    """A function as HLO."""

    traced: Traced

    @property
    def module(self) -> Module:
        """The HLO as data."""
        lowering, tiles = self.traced.parts.lowering, self.traced.parts.tiles
        return finished(lowering.module, tiles=[tiles[i] for i in lowering.inputs] if tiles else ())

    def as_text(self, dialect: str = "hlo") -> str:
        """The program as text.

        Args:
            dialect: ``"hlo"`` as XLA prints it, or ``"stablehlo"``.

        Raises:
            ValueError: another dialect.
        """
        if dialect not in ("hlo", "stablehlo"):
            fail(ValueError, f"unknown dialect {dialect!r}", "use 'hlo' or 'stablehlo'.")
        if dialect == "stablehlo":
            parts = self.traced.parts
            return stablehlo.text(portable.whole(parts.lowering, {}, tiles=parts.tiles))
        return str(self.module)

    def cost_analysis(self) -> dict[str, float]:
        """Operations and memory traffic of the program before it is optimised.

        ``flops`` (a multiply-add is two), ``transcendentals`` and ``bytes accessed``, as XLA counts
        them; but a loop counts for each of its steps, where their number is known.

        Source: ``jax.stages.Lowered.cost_analysis``.
        """
        if not self.traced.parts.lowering.outputs:
            return dict.fromkeys(_COSTS, 0.0)
        return _as_dict(self.module)

    @overload
    def compile(
        self, target: None = None, compiler_options: dict[str, Any] | None = None
    ) -> Compiled: ...
    @overload
    def compile(
        self, target: str, compiler_options: dict[str, Any] | None = None
    ) -> CompiledAhead: ...
    def compile(
        self, target: str | None = None, compiler_options: dict[str, Any] | None = None
    ) -> Compiled | CompiledAhead:
        """Compile; runs nothing.

        Args:
            target: None: the running device. Or a TPU that need not be there, by its topology
                (``"tpu:v6e:16x16"``) or its name in Cloud TPU (``"tpu:v6e-256"``): this takes
                ``pip install 'xfunc[aot]'``.
            compiler_options: for a target, options of libtpu by name. torch_xla has none for a
                single program.

        Raises:
            ValueError: an unknown target, or options for the running device.
            ShardingError: the target has another number of devices than the program's mesh.
            CompileError: the compiler refuses the program.
            OutOfMemoryError: the program does not fit.
        """
        if target is not None:
            kind = target.partition(":")[0] if isinstance(target, str) else ""
            compile_for = _targets.get(kind, _targets["tpu"])
            return compile_for(self, target, compiler_options or {})
        if compiler_options:
            fail(
                ValueError,
                f"torch_xla takes no compiler options for a single program: {compiler_options}",
                "set them for the process, in the environment variable XLA_FLAGS.",
            )
        if self.traced.parts.lowering.outputs:
            _executable(self.traced.parts)
        return Compiled(self)


def _executable(parts: Parts) -> Executable:
    lowering = parts.lowering
    placements: tuple[Placement | None, ...] = ()
    if device_count() > 1:
        placements = tuple(t and placement_of(t) for t in parts.tiles)
        n = len(lowering.avals) + len(lowering.held())
        placements = placements[:n] or (None,) * n
    return lowering.executable(parts.entry.donated, placements)


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled function: takes exactly the arguments that it was compiled for."""

    lowered: Lowered

    def _optimised(self) -> Optimised | None:
        parts = self.lowered.traced.parts
        return _executable(parts).optimised() if parts.lowering.outputs else None

    def as_text(self) -> str | None:
        """The HLO that the compiler made, after its optimisations.

        None where the device's client does not tell, and while `xfunc.profiler.trace` is recording.
        """
        found = self._optimised()
        return None if found is None else text_of(found.module)

    def cost_analysis(self) -> dict[str, float] | None:
        """Like `Lowered.cost_analysis`, of the program that the compiler made.

        A fusion of several operations reads and writes memory only at its edges. None as in
        `as_text`.

        Source: ``jax.stages.Compiled.cost_analysis``.
        """
        found = self._optimised()
        return None if found is None else _as_dict(found.module)

    def memory_analysis(self) -> MemoryAnalysis:
        """What the program takes of the device's memory; see `MemoryAnalysis`.

        Source: ``jax.stages.Compiled.memory_analysis``.
        """
        found = self._optimised()
        return MemoryAnalysis() if found is None else found.memory

    def serialize(self) -> bytes:
        """The program as bytes, for another process: see `xfunc.export.serialize`.

        It is compiled again where it is loaded: torch_xla offers no way to load what it compiled.
        """
        return export.serialize(self.lowered)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        traced = self.lowered.traced
        for where in traced.static_positions:
            args = (*args[:where], None, *args[where:])
        leaves, structure = tree.flatten((args, kwargs))
        staged = traced.parts.staged
        given = avals_of(_avals(staged, leaves, structure)[0])
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
        args, kwargs = tree.unflatten(structure, leaves)
        return run_staged(staged, args, kwargs, traced.parts.options)


Compiler = Callable[[Lowered, str, dict[str, Any]], "CompiledAhead"]
_targets: dict[str, Compiler] = {}


def register_target(kind: str, compile_for: Compiler) -> None:
    """Let ``Lowered.compile`` compile for the targets whose name begins with ``kind:``."""
    _targets[kind] = compile_for


_COSTS = ("flops", "transcendentals", "bytes accessed")


def _as_dict(module: Module) -> dict[str, float]:
    found = cost(module)
    numbers = (found.flops, found.transcendentals, found.bytes_accessed)
    return {name: float(n) for name, n in zip(_COSTS, numbers, strict=True)}


def _show(structure: tree.Structure, avals: Any) -> str:
    args, kwargs = tree.unflatten(structure, [str(a) for a in avals])
    return f"{args} {kwargs}" if kwargs else f"{args}"


def _avals(
    staged: Staged, leaves: list[Any], structure: tree.Structure
) -> tuple[list[Any], tuple[tuple[int, Any], ...]]:
    """Tensors or avals of the leaves, and those leaves that are neither, by position."""
    abstract = [Aval((), NUMBERS[type(x)]) if type(x) in NUMBERS else from_numpy(x) for x in leaves]
    fixed = tuple(
        (i, x)
        for i, x in enumerate(abstract)
        if not isinstance(x, (torch.Tensor, ShapeDtypeStruct))
    )
    if fixed and staged.arrays_only:
        prepare(staged, leaves, structure)  # Raises, and says which.
    skip = {i for i, _ in fixed}
    return [x for i, x in enumerate(abstract) if i not in skip], fixed


def trace(
    staged: Staged,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shardings: Sequence[Any] | None = None,
    options: Options = PLAIN,
) -> Traced:
    """Trace a staged function for tensors, numbers or `ShapeDtypeStruct`s.

    `shardings` are those that it takes its flat arguments in, or None for some.
    """
    leaves, structure = tree.flatten((args, kwargs))
    leaves, fixed = _avals(staged, leaves, structure)
    avals = avals_of(leaves)
    found = [
        _sharding(x, given, f"{label} of {staged.name}")
        for x, given, label in zip(
            leaves, shardings or (None,) * len(leaves), staged.labels(structure, fixed), strict=True
        )
    ]
    whole = options._replace(fixed=fixed, effects_allowed=True)
    entry, held = staged.find(structure, avals, options=whole)
    in_avals = tuple(Aval(shape, dtype, s) for (shape, dtype), s in zip(avals, found, strict=True))
    parts = Parts(staged, entry, options, _tiles(entry, in_avals, leaves, held))
    return Traced(structure, in_avals, parts)


def _sharding(x: Any, given: Any, what: str) -> Any:
    """How an argument is divided: as the function wants it, or as it is."""
    wanted = given if given is not None else getattr(x, "sharding", None)
    if wanted is not None:
        if hasattr(wanted, "check"):
            wanted.check(tuple(x.shape), what)
            return wanted
        fail(
            ShardingError,
            f"the sharding of {what} is {shown(wanted)}",
            "give a ShapeDtypeStruct a NamedSharding.",
        )
    return known_sharding(x) if isinstance(x, torch.Tensor) else None


def _tiles(
    entry: Entry, avals: Sequence[Aval], leaves: Sequence[Any], held: Sequence[torch.Tensor]
) -> tuple[Tiles | None, ...]:
    """How the program's flat inputs are divided; () if nothing says that any is."""
    captures = [held[c] if isinstance(c, int) else c for c in entry.captures]
    tensors = [*leaves, *captures, *entry.program.lowering.consts]
    said = [a.sharding for a in avals] + [None] * (len(tensors) - len(avals))
    found = [_divided(x, s) for x, s in zip(tensors, said, strict=True)]
    unused = None  # the parameter of a program that takes nothing
    return (*found, unused) if any(found) else ()


def _divided(x: Any, sharding: Any) -> Tiles | None:
    if sharding is not None:
        return sharding.tiles(len(x.shape))
    if device_count() == 1 or not isinstance(x, torch.Tensor) or x.device.type != "xla":
        return None
    (where,) = placements([x])
    return where and where.tiles
