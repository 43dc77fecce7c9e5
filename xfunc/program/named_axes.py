"""Axes of `vmap` that have a name, and the primitives by which the examples of a batch communicate.

NOTE [which vmap it is]: whoever maps over a named axis maps over the numbers of the examples too,
and each primitive takes them as an operand. So at each level of vmap its rule can tell whether this
is the one: exactly there the numbers are batched. It holds wherever the call is written, in a loop,
a branch or a custom rule inside the vmap, since what these close over becomes their argument.
They are traced for one example first, where the primitive has a shape and no meaning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Generator, Sequence

import torch

from xfunc.core import ambient
from xfunc.core.avals import Aval, aval_of, hlo_shape
from xfunc.hlo import Builder
from xfunc.program.bind import bind
from xfunc.program.communication import Communication
from xfunc.program.exchanges import Exchange
from xfunc.program.primitive import Dims, Tensor
from xfunc.torchlib.batching import at_dim
from xfunc.trace.lowering import Lowering

ONE_EXAMPLE = "xfunc_named_axis"
"""The call in the HLO of one example: it has a shape, and no meaning."""

_NOTHING = torch.empty(0)


@dataclasses.dataclass(frozen=True)
class NamedAxis:
    """The axis of a vmap that is being traced. It holds no value, so it can be part of a key.

    Attributes:
        name: of the axis.
        size: the number of examples.
        numbers: gives the tensor of the number of the example.
    """

    name: str
    size: int
    numbers: weakref.ref[Tensor] = dataclasses.field(compare=False, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def held(self) -> Tensor:
        """The number of the example, or nothing, if what is being traced does not need it."""
        found = self.numbers()
        return _NOTHING if found is None else found

    def place(self) -> Tensor:
        """The number of the example, an int64 scalar."""
        found = self.numbers()
        assert found is not None, "whatever uses the axis holds its numbers"
        return found

    def apply(self, exchange: Exchange, x: Tensor) -> Tensor:
        """What `x` of all examples makes."""
        return bind(Among(exchange, aval_of(x), self.size), [x, self.place()])[0]


@contextlib.contextmanager
def named(name: str, size: int, numbers: Tensor) -> Generator[None]:
    """Have an axis of this name, in a block."""
    before = ambient.named_axes()
    ambient.set_named_axes((*before, NamedAxis(name, size, weakref.ref(numbers))))
    try:
        yield
    finally:
        ambient.set_named_axes(before)


@dataclasses.dataclass(frozen=True)
class Among(Communication):
    """The primitive of the examples of a batch; it takes their numbers as well.

    It has no pair: at a vmap whose numbers are batched, that would be one of all examples.
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
        if dims[1] is not None:  # This is the one.
            every = at_dim(args[0], dims[0], 0, n)
            return [exchange.of_all(every)], [None if exchange.is_shared else 0]
        (out,) = bind(self.of_batch(n), [at_dim(args[0], dims[0], exchange.before, n), args[1]])
        # Batch first and contiguous, as in `Scan.batch`.
        first = out.movedim(exchange.after, 0)
        return [first.clone(memory_format=torch.contiguous_format)], [0]


@functools.lru_cache(maxsize=1024)
def _one_example(primitive: Among) -> Lowering:
    b = Builder(primitive.name)
    body = b.computation(primitive.name)
    avals = (primitive.aval, Aval((), torch.int64))
    values = [body.parameter(hlo_shape(a)) for a in avals]
    out = body.custom_call(ONE_EXAMPLE, values, hlo_shape(primitive.outputs[0]))
    module = b.build(body.build(body.tuple([out])))
    return Lowering.of(b.name, module, avals, primitive.outputs)
