"""The stages of a jitted function as plain objects: traced, lowered, compiled."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from xfunc import export, portable, tree
from xfunc.analysis import MemoryAnalysis, Optimised, optimised
from xfunc.arguments import avals_of, prepare
from xfunc.avals import NUMBERS, Aval, ShapeDtypeStruct
from xfunc.entry import Entry
from xfunc.errors import TreeMismatchError, report
from xfunc.finish import finished
from xfunc.hlo import Module
from xfunc.hlo.cost import cost
from xfunc.locations import user_location
from xfunc.lowering import Lowering
from xfunc.staging import Staged, run_staged


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
        return finished(self._lowering.module)

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
            raise ValueError(
                report(
                    f"unknown dialect {dialect!r}",
                    "use 'hlo' or 'stablehlo'.",
                    at=user_location(),
                )
            )
        if dialect == "stablehlo":
            return portable.stablehlo(portable.whole(self._lowering, {}))
        return str(self.module)

    def cost_analysis(self) -> dict[str, float]:
        """Operations and memory traffic of the program before it is optimised.

        ``flops`` (a multiply-add is two), ``transcendentals`` and ``bytes accessed``, as XLA counts
        them; but a loop counts for each of its steps, where their number is known.

        Source: ``jax.stages.Lowered.cost_analysis``.
        """
        return _as_dict(self.module) if self._lowering.outputs else dict.fromkeys(_COSTS, 0.0)

    def compile(
        self, target: str | None = None, compiler_options: dict[str, Any] | None = None
    ) -> Compiled:
        """Compile; runs nothing.

        Args:
            target: None: the running device.
            compiler_options: None: torch_xla has no options for a single program.

        Raises:
            ValueError: any other target or option.
            CompileError: the compiler refuses the program.
        """
        if target is not None:
            raise ValueError(
                report(
                    f"unknown target {target!r}",
                    "leave it out, to compile for the running device.",
                    at=user_location(),
                )
            )
        if compiler_options:
            raise ValueError(
                report(
                    f"torch_xla takes no compiler options for a single program: {compiler_options}",
                    "set them for the process, in the environment variable XLA_FLAGS.",
                    at=user_location(),
                )
            )
        entry = self.traced._entry
        if self._lowering.outputs:
            self._lowering.executable(entry.donated)
        return Compiled(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled function: takes exactly the arguments that it was compiled for."""

    lowered: Lowered

    def _optimised(self) -> Optimised | None:
        lowering = self.lowered._lowering
        if not lowering.outputs:
            return None
        return optimised(lowering.executable(self.lowered.traced._entry.donated))

    def as_text(self) -> str | None:
        """The HLO that the compiler made, after its optimisations.

        None where the device's client does not tell, and while `xfunc.profiler.trace` is recording.
        """
        found = self._optimised()
        return None if found is None else found.text()

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
        given = _avals(traced._staged, leaves, structure)
        if structure != traced.in_tree or given != avals_of(traced.in_avals):
            raise TreeMismatchError(
                report(
                    f"{traced._staged.name} was compiled for other arguments: "
                    f"{_show(traced.in_tree, traced.in_avals)}, not "
                    f"{_show(structure, [Aval(*a) for a in given])}",
                    "call the jitted function itself, which compiles for each kind of arguments.",
                    at=user_location(),
                )
            )
        return run_staged(traced._staged, args, kwargs, **traced._options)


_COSTS = ("flops", "transcendentals", "bytes accessed")


def _as_dict(module: Module) -> dict[str, float]:
    found = cost(module)
    numbers = (found.flops, found.transcendentals, found.bytes_accessed)
    return {name: float(n) for name, n in zip(_COSTS, numbers, strict=True)}


def _show(structure: tree.Structure, avals: Any) -> str:
    args, kwargs = tree.unflatten(structure, [str(a) for a in avals])
    return f"{args} {kwargs}" if kwargs else f"{args}"


def _avals(staged: Staged, leaves: list[Any], structure: tree.Structure) -> tuple[Any, ...]:
    abstract = [Aval((), NUMBERS[type(x)]) if type(x) in NUMBERS else x for x in leaves]
    others = [x for x in abstract if not isinstance(x, (torch.Tensor, ShapeDtypeStruct))]
    if others:
        prepare(staged, leaves, structure)  # Raises, and says which.
    return avals_of(abstract)


def trace(staged: Staged, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Traced:
    """Trace a staged function for tensors, numbers or `ShapeDtypeStruct`s."""
    leaves, structure = tree.flatten((args, kwargs))
    avals = _avals(staged, leaves, structure)
    entry, _ = staged.find(structure, avals, None, effects_allowed=True, **options)
    return Traced(structure, tuple(Aval(*a) for a in avals), staged, entry, options)
