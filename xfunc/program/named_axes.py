"""Named `vmap` axes, and the primitives by which the examples of a batch communicate.

NOTE [which vmap it is]: a vmap with a named axis also maps over the indices of its examples, and
each primitive takes the index as an operand. So its rule knows at each level of vmap whether the
axis belongs to it: only there is the index batched. This holds wherever the call is written, in a
loop, a branch or a custom rule inside the vmap, since values these close over become arguments.
They are first traced for one example, where only the shape of the result is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Generator, Sequence

import torch

from xfunc.core import ambient
from xfunc.core.avals import Aval, array_of, aval_of
from xfunc.graph import build
from xfunc.graph.build import CustomCall
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node, unattributed
from xfunc.program.bind import bind
from xfunc.program.collective_ops import CollectiveOp
from xfunc.program.communication import Communication
from xfunc.program.primitive import Dims, Tensor
from xfunc.torchlib.batching import at_dim
from xfunc.trace.lowering import HloProgram

ONE_EXAMPLE = "xfunc_named_axis"
"""The call in the HLO of one example: it has a shape but no meaning."""

_NOTHING = torch.empty(0)


@dataclasses.dataclass(frozen=True)
class NamedAxis:
    """The axis of a vmap that is being traced. It holds no value, so it can be part of a key.

    Attributes:
        name: the axis's name.
        size: the number of examples.
        index: a reference to the tensor that holds the example's index.
    """

    name: str
    size: int
    index: weakref.ref[Tensor] = dataclasses.field(compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def held(self) -> Tensor:
        """The index of the example, or an empty tensor if the traced function does not need it."""
        found = self.index()
        return _NOTHING if found is None else found

    def axis_index(self) -> Tensor:
        """The index of the example, an int64 scalar."""
        result = self.index()
        assert result is not None, "whatever uses the axis holds its index"
        return result

    def apply(self, exchange: CollectiveOp, x: Tensor) -> Tensor:
        """The exchange applied to `x` of all examples."""
        return bind(BatchedCollective(exchange, aval_of(x), self.size), [x, self.axis_index()])[0]


@contextlib.contextmanager
def named(name: str, size: int, index: Tensor) -> Generator[None]:
    """A block in which an axis of this name exists."""
    before = ambient.named_axes()
    ambient.set_named_axes((*before, NamedAxis(name, size, weakref.ref(index))))
    try:
        yield
    finally:
        ambient.set_named_axes(before)


@dataclasses.dataclass(frozen=True)
class BatchedCollective(Communication):
    """The primitive for examples of a batch; it also takes their indices.

    It has no reverse rule: at the vmap where the indices are batched, one would span all examples.
    """

    examples: int

    @property
    def size(self) -> int:
        return self.examples

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        # See NOTE [which vmap it is].
        return _one_example(self).apply(args)

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        exchange = self.exchange
        if dims[1] is not None:  # This is the axis's own vmap.
            every = at_dim(args[0], dims[0], 0, n)
            return [exchange.of_all(every)], [None if exchange.is_shared else 0]
        (out,) = bind(self.of_batch(n), [at_dim(args[0], dims[0], exchange.before, n), args[1]])
        # Batch first and contiguous, as in `Scan.batch`.
        first = out.movedim(exchange.after, 0)
        return [first.clone(memory_format=torch.contiguous_format)], [0]


@functools.lru_cache(maxsize=1024)
def _one_example(primitive: BatchedCollective) -> HloProgram:
    avals = (primitive.aval, Aval((), torch.int64))
    with unattributed():
        given = build.parameters([array_of(a) for a in avals])
        type = array_of(primitive.outputs[0])
        out = Node("custom-call", type, tuple(given), CustomCall(ONE_EXAMPLE))
    return HloProgram.of(
        primitive.name, Graph(primitive.name, given, [out]), avals, primitive.outputs
    )
