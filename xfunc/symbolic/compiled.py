"""A function compiled for all sizes of its `Dim`s: the result of `LoweredRange.compile`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from xfunc import export, tree
from xfunc.backends.analysis import MemoryAnalysis
from xfunc.backends.lock import lock
from xfunc.backends.placement import as_argument
from xfunc.errors import TreeMismatchError, UnsupportedOpError, fail, short_repr
from xfunc.program.bind import ad_depth
from xfunc.stages.arguments import arguments_of, avals_of, prepare
from xfunc.stages.compiled import Compiled, Running
from xfunc.symbolic.pad import pad
from xfunc.torchlib import functorch
from xfunc.trace import tracing
from xfunc.tree import Leaf, PyTree

if TYPE_CHECKING:
    from xfunc.aot.buffers import Buffer
    from xfunc.aot.topology import Topology
    from xfunc.symbolic.lowered import LoweredRange


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledRange:
    """A function compiled for a range of shapes: takes arguments of any of these.

    Queries without sizes are about the program of the largest bucket, which takes the most memory
    and time; `at` gives that of another.

    Attributes:
        lowered: the lowered function that was compiled.
        programs: of the buckets, by the largest size of each `Dim`; internal.
    """

    lowered: LoweredRange
    programs: Mapping[tuple[int, ...], Compiled]

    def at(self, **sizes: int) -> Compiled:
        """The program of the bucket that holds these sizes; see `LoweredRange.at`."""
        return self.programs[self.lowered.key_of(sizes)]

    @property
    def topology(self) -> Topology | None:
        """The devices that it was compiled for; None for the devices of this process."""
        return self.at().topology

    @property
    def compiler(self) -> str:
        """See `Compiled.compiler`."""
        return self.at().compiler

    def as_text(self) -> str | None:
        """See `Compiled.as_text`; of the largest bucket."""
        return self.at().as_text()

    def cost_analysis(self) -> dict[str, float] | None:
        """See `Compiled.cost_analysis`; of the largest bucket."""
        return self.at().cost_analysis()

    def memory_analysis(self) -> MemoryAnalysis:
        """See `Compiled.memory_analysis`; of the largest bucket."""
        return self.at().memory_analysis()

    def largest_buffers(self, n: int = 10) -> Sequence[Buffer] | None:
        """See `Compiled.largest_buffers`; of the largest bucket."""
        return self.at().largest_buffers(n)

    def serialize(self) -> bytes:
        """The programs as bytes, for another process: see `xfunc.export.serialize`.

        Raises:
            ValueError: it was compiled for an absent device; that format holds one program.
        """
        if self.topology is not None:
            fail(
                ValueError,
                f"{self.lowered.name} has {len(self.programs)} programs for {self.topology.name}",
                "serialize the program of each bucket: at(...).serialize().",
            )
        return export.serialize(self.lowered)

    def __call__(self, *args: object, **kwargs: object) -> PyTree:
        """Run it.

        Raises:
            TreeMismatchError: the arguments are not those it was compiled for.
            ShapeError: their sizes are none of the range.
            CompileError: it was compiled for a device that is not present.
            UnsupportedOpError: the call is part of a trace, or is being differentiated or batched.
        """
        program = self.at().program
        if not isinstance(program, Running):
            return program.call(args, kwargs)
        lowered = self.lowered
        for where in lowered.static_positions:
            args = (*args[:where], None, *args[where:])
        leaves, structure = tree.flatten((args, kwargs))
        staged = self.at().lowered.traced.parts.staged
        given = arguments_of(staged, leaves, structure)[0]
        self._check(structure, given)
        env = lowered.declared.bind([tuple(x.shape) for x in given])
        key = lowered.key_of(env)
        bucket, traced = lowered.buckets[key]
        wide: list[Leaf] = [
            pad(x, tuple(a.shape)) for x, a in zip(leaves, traced.in_avals, strict=True)
        ]
        labels = staged.labels(structure)
        wide = [
            x if a.sharding is None else as_argument(x, a.sharding, staged.name, label)
            for x, a, label in zip(wide, traced.in_avals, labels, strict=True)
        ]
        with lock:
            flat, fixed = prepare(staged, wide, structure)
            options = lowered.options._replace(fixed=fixed)
            _, held = staged.key_of(structure, avals_of(flat), options)
            program = self.programs[key].program
            assert isinstance(program, Running)
            outs = program.entry.run(flat, [*held, *lowered.scalars.of(env.values())])
            return program.entry.result(bucket.cut(outs, env))

    def _check(self, structure: tree.Structure, given: Sequence[Leaf]) -> None:
        """Refuse other arguments, and calls that transforms are part of."""
        lowered = self.lowered
        pairs = zip(given, lowered.in_avals, lowered.declared.dims, strict=False)
        if structure != lowered.in_tree or any(
            # `bind` compares the others.
            x.dtype != a.dtype or (dims is None and tuple(x.shape) != tuple(a.shape))
            for x, a, dims in pairs
        ):
            args, kwargs = tree.unflatten(lowered.in_tree, [str(a) for a in lowered.in_avals])
            fail(
                TreeMismatchError,
                f"{lowered.name} was compiled for other arguments: "
                f"{short_repr(args)} {short_repr(kwargs)}",
                "call the jitted function itself, which compiles for each kind of arguments.",
            )
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        if tracing.current() is not None or functorch.levels() or ad_depth(tensors):
            fail(
                UnsupportedOpError,
                f"{lowered.name} was compiled for a range of shapes, and cannot be traced, "
                "differentiated or batched any more",
                "call the jitted function itself; pass x.detach() for what needs no gradient.",
            )
