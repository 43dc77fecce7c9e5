"""The stages of a jitted function as plain objects: traced, lowered, compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from xfunc import tree
from xfunc.backends.pjrt import printer
from xfunc.backends.placement import known_sharding, placement_of_tensor
from xfunc.core.avals import Aval
from xfunc.core.types import Sharding
from xfunc.errors import ShardingError, fail, short_repr
from xfunc.hlo import Module
from xfunc.hlo.spmd.tiles import HloSharding
from xfunc.stages import compiled
from xfunc.stages.arguments import arguments_of, avals_of
from xfunc.stages.compiled import Compiled
from xfunc.stages.entry import Entry
from xfunc.stages.options import PLAIN, Options
from xfunc.stages.staging import Staged
from xfunc.trace import portable
from xfunc.trace.finished import finalize
from xfunc.trace.lowering import HloProgram
from xfunc.trace.text import text_of
from xfunc.tree import PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """The parts of a traced function, for internal use.

    Attributes:
        staged: the function.
        entry: its program.
        options: the options it was traced with.
        tiles: shardings of the arguments, captures and held values; () if none has one.
        is_padded: whether the program takes arguments padded to a bucket, and their actual sizes.
    """

    staged: Staged
    entry: Entry
    options: Options
    tiles: tuple[HloSharding | None, ...] = ()
    is_padded: bool = False

    @property
    def lowering(self) -> HloProgram:
        """The program as HLO."""
        return self.entry.program.lowering


@dataclasses.dataclass(frozen=True, eq=False)
class Traced:
    """A function traced for given arguments.

    Attributes:
        in_tree: structure of ``(args, kwargs)``.
        in_avals: of its leaves.
        out_tree: structure of the result.
        parts: its parts; internal.
    """

    in_tree: tree.Structure
    in_avals: tuple[Aval, ...]
    parts: Parts

    @property
    def out_tree(self) -> tree.Structure:
        return self.parts.entry.out_tree

    @property
    def out_info(self) -> PyTree:
        """The result as a tree of `ShapeDtypeStruct`."""
        return tree.unflatten(self.out_tree, self.parts.entry.outputs)

    @property
    def static_positions(self) -> list[int]:
        """Positions of the arguments that are part of the program."""
        return [i for i, *_ in self.parts.options.static or () if isinstance(i, int)]

    def as_text(self, lines: bool = False) -> str:
        """The program as text for people, which ``print(traced)`` shows too.

        One line for each operation, with the type of its result; the bodies of loops, branches and
        jitted functions are indented below. It is not parsed by anything: `lower` has the HLO.

        Args:
            lines: whether each operation is followed by the user's file and line.

        Returns:
            The text.

        Semantics: ``jax.make_jaxpr``, which also prints its result.
        """
        graph = self.parts.lowering.function.graph
        return str(self.lower().module) if graph is None else text_of(graph, lines)

    def __str__(self) -> str:
        return self.as_text()

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
        return finalize(lowering.graph, tiles=[tiles[i] for i in lowering.inputs] if tiles else ())

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
            return printer.stablehlo_text(portable.whole(parts.lowering, {}, tiles=parts.tiles))
        return str(self.module)

    def cost_analysis(self) -> dict[str, float]:
        """Operations and memory traffic of the program before it is optimised.

        ``flops`` (a multiply-add is two), ``transcendentals`` and ``bytes accessed``, as XLA counts
        them; but a loop counts for each of its steps, where their number is known.

        Source: ``jax.stages.Lowered.cost_analysis``.
        """
        if not self.traced.parts.lowering.outputs:
            return dict.fromkeys(compiled.COSTS, 0.0)
        return compiled.costs(self.module)

    def compile(
        self,
        target: str | None = None,
        compiler_options: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Compiled:
        """Compile; runs nothing.

        Args:
            target: None: the running device. Or a TPU, which need not be present, by its topology
                (``"tpu:v6e:16x16"``) or its name in Cloud TPU (``"tpu:v6e-256"``): this takes the
                extra ``aot``.
            compiler_options: options by name: of libtpu for a target, of XLA for the running
                device with the backend ``"pjrt"``. torch_xla has none for a single program.
            timeout: seconds after which a target's compiler, which runs in a process of its own, is
                ended; None: it may take as long as it likes.

        Raises:
            ValueError: an unknown target, invalid options, any options for torch_xla, or a timeout
                without a target.
            ShardingError: the target has another number of devices than the program's mesh.
            CompileError: the compiler refuses the program, or takes too long.
            OutOfMemoryError: the program does not fit.
        """
        return compiled.compile_for(self, target, compiler_options or {}, timeout)


def trace(
    staged: Staged,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    shardings: Sequence[object] | None = None,
    options: Options = PLAIN,
) -> Traced:
    """Trace a staged function for tensors, numbers or `ShapeDtypeStruct`s.

    `shardings` are the shardings of its flat arguments; some may be None.
    """
    leaves, structure = tree.flatten((args, kwargs))
    leaves, fixed = arguments_of(staged, leaves, structure)
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


def _sharding(x: torch.Tensor | Aval, given: object, what: str) -> Sharding | None:
    """The sharding of an argument: the one that the function requires, or its own."""
    wanted = given if given is not None else getattr(x, "sharding", None)
    if wanted is not None:
        if isinstance(wanted, Sharding):
            wanted.check(tuple(x.shape), what)
            return wanted
        fail(
            ShardingError,
            f"the sharding of {what} is {short_repr(wanted)}",
            "give a ShapeDtypeStruct a NamedSharding.",
        )
    return known_sharding(x) if isinstance(x, torch.Tensor) else None


def _tiles(
    entry: Entry,
    avals: Sequence[Aval],
    leaves: Sequence[torch.Tensor | Aval],
    held: Sequence[torch.Tensor],
) -> tuple[HloSharding | None, ...]:
    """The shardings of the program's flat inputs; () if none is specified."""
    captures = [held[c] if isinstance(c, int) else c for c in entry.captures]
    tensors = [*leaves, *captures]
    said = [a.sharding for a in avals] + [None] * (len(tensors) - len(avals))
    found = [_tiles_of(x, s) for x, s in zip(tensors, said, strict=True)]
    return tuple(found) if any(found) else ()


def _tiles_of(x: torch.Tensor | Aval, sharding: Sharding | None) -> HloSharding | None:
    if sharding is not None:
        return sharding.tiles(len(x.shape))
    where = placement_of_tensor(x) if isinstance(x, torch.Tensor) else None
    return where and where.tiles
