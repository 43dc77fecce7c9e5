"""The stages of a jitted function as plain objects: traced, lowered, compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch

from xfunc import export, tree
from xfunc.backends.torch_xla import stablehlo
from xfunc.backends.torch_xla.analysis import MemoryAnalysis, Optimised, optimised
from xfunc.backends.torch_xla.executable import Executable
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
from xfunc.stages.staging import Staged, run_staged
from xfunc.trace import portable
from xfunc.trace.finalise import finished
from xfunc.trace.lowering import Lowering

if TYPE_CHECKING:
    from xfunc.aot import CompiledAhead


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A function traced for given arguments.

    Attributes:
        in_tree: structure of ``(args, kwargs)``.
        in_avals: of its leaves.
        out_tree: structure of the result.
    """

    in_tree: tree.Structure
    in_avals: tuple[Aval, ...]
    _staged: Staged
    _entry: Entry
    _options: dict[str, Any]
    _tiles: tuple[Tiles | None, ...] = ()  # of arguments, captures and what the program holds

    @property
    def out_tree(self) -> tree.Structure:
        return self._entry.out_tree

    @property
    def out_info(self) -> Any:
        """The result as a tree of `ShapeDtypeStruct`."""
        return tree.unflatten(self.out_tree, self._entry.outputs)

    @property
    def static_positions(self) -> list[int]:
        """Positions of the arguments that are part of the program."""
        return [i for i, *_ in self._options.get("static") or () if isinstance(i, int)]

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
        tiles = self.traced._tiles
        return finished(
            self._lowering.module, tiles=[tiles[i] for i in self._lowering.inputs] if tiles else ()
        )

    @property
    def _lowering(self) -> Lowering:
        return self.traced._entry.program.lowering

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
            return stablehlo.text(portable.whole(self._lowering, {}, tiles=self.traced._tiles))
        return str(self.module)

    def cost_analysis(self) -> dict[str, float]:
        """Operations and memory traffic of the program before it is optimised.

        ``flops`` (a multiply-add is two), ``transcendentals`` and ``bytes accessed``, as XLA counts
        them; but a loop counts for each of its steps, where their number is known.

        Source: ``jax.stages.Lowered.cost_analysis``.
        """
        return _as_dict(self.module) if self._lowering.outputs else dict.fromkeys(_COSTS, 0.0)

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
        if self._lowering.outputs:
            self._executable()
        return Compiled(self)

    def _executable(self) -> Executable:
        placements: tuple[Placement | None, ...] = ()
        tiles = self.traced._tiles
        if device_count() > 1:
            placements = tuple(t and placement_of(t) for t in tiles)
            n = len(self._lowering.avals) + len(self._lowering.held())
            placements = placements[:n] or (None,) * n
        return self._lowering.executable(self.traced._entry.donated, placements)


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled function: takes exactly the arguments that it was compiled for."""

    lowered: Lowered

    def _optimised(self) -> Optimised | None:
        if not self.lowered._lowering.outputs:
            return None
        return optimised(self.lowered._executable())

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
        given = avals_of(_avals(traced._staged, leaves, structure)[0])
        if structure != traced.in_tree or given != avals_of(traced.in_avals):
            fail(
                TreeMismatchError,
                f"{traced._staged.name} was compiled for other arguments: "
                f"{_show(traced.in_tree, traced.in_avals)}, not "
                f"{_show(structure, [Aval(*a) for a in given])}",
                "call the jitted function itself, which compiles for each kind of arguments.",
            )
        leaves = [
            x if a.sharding is None else as_argument(x, a.sharding, traced._staged.name, label)
            for x, a, label in zip(
                leaves, traced.in_avals, traced._staged.labels(structure), strict=True
            )
        ]
        args, kwargs = tree.unflatten(structure, leaves)
        return run_staged(traced._staged, args, kwargs, **traced._options)


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
    **options: Any,
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
    entry, held = staged.find(
        structure, avals, None, effects_allowed=True, fixed=fixed, beside=fixed, **options
    )
    in_avals = tuple(Aval(shape, dtype, s) for (shape, dtype), s in zip(avals, found, strict=True))
    return Traced(
        structure, in_avals, staged, entry, options, _tiles(entry, in_avals, leaves, held)
    )


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
