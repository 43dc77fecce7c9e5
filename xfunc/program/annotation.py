"""Primitives that return values unchanged and annotate them for XLA's partitioner."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from xfunc.core.avals import Aval, array_of, batched
from xfunc.graph.graph import Graph
from xfunc.graph.node import unattributed
from xfunc.hlo.spmd.annotations import pair
from xfunc.program.bind import bind, or_zeros, zeros
from xfunc.program.custom_reverse_rule import CustomReverseRule
from xfunc.program.primitive import Dims, Primitive, ReverseRule, Tensor
from xfunc.program.program import differentiable
from xfunc.torchlib.batching import at_dim
from xfunc.trace.lowering import HloProgram


@dataclasses.dataclass(frozen=True)
class Annotation(Primitive):
    """Base of these primitives; see `Primitive`.

    Equal annotations are lowered once. The derivatives of the values get the same annotation.

    Attributes:
        avals: of the values.
    """

    avals: tuple[Aval, ...]

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    @property
    def graph(self) -> Graph:
        """The function of values that annotates them."""
        raise NotImplementedError

    def batched(self, n: int) -> Annotation:
        """The annotation of a batch along a new first axis."""
        return dataclasses.replace(self, avals=batched(self.avals, [0] * len(self.avals), n))

    def derivatives(self, values: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Tangents or cotangents of the values, annotated."""
        present = [v for v in values if v is not None]
        return list(bind(self, present)) if len(present) == len(values) else list(values)

    @property
    def outputs(self) -> tuple[Aval, ...]:
        return self.avals

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return _lowering(self).apply(args)

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule:
        marked = tuple(i for i, b in enumerate(wrt) if b)
        return CustomReverseRule(self, marked, marked, len(self.avals))

    def mapped(self, dims: Dims, n: int) -> tuple[Annotation, Dims, Dims]:
        """The annotation of a batch, with the batch dimension first everywhere."""
        first = (0,) * len(self.avals)
        return self.batched(n), first, first

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        found = self.derivatives(cts)
        return [or_zeros(found[i], args[i]) for i in wrt]

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        dots = [
            zeros(a) if t is None and differentiable(a) else t
            for a, t in zip(args, tangents, strict=True)
        ]
        return self.derivatives(dots)

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        moved = [at_dim(a, d, 0, n) for a, d in zip(args, dims, strict=True)]
        return bind(self.batched(n), moved), [0] * len(args)


@dataclasses.dataclass(frozen=True)
class ShardGroup(Annotation):
    """Two values that are sharded alike; see `xfunc.hlo.spmd.annotations`.

    Attributes:
        automatic: whether xfunc ties them automatically. Whether to tie their derivatives is
            decided where these are computed.
    """

    automatic: bool = False

    @property
    def graph(self) -> Graph:
        first, second = self.avals
        return pair(array_of(first), array_of(second), self.automatic)

    def derivatives(self, values: Sequence[Tensor | None]) -> list[Tensor | None]:
        return list(values) if self.automatic else super().derivatives(values)


@functools.lru_cache(1024)
def _lowering(annotation: Annotation) -> HloProgram:
    with unattributed():
        graph = annotation.graph
    return HloProgram.of(annotation.name, graph, annotation.avals, annotation.avals)
