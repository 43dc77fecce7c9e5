"""Axes of `vmap` that have a name, and the primitives by which the examples of a batch communicate.

NOTE [which vmap it is]: whoever maps over a named axis maps over the numbers of the examples too,
and each primitive takes them as an operand. So at each level of vmap its rule can tell whether this
is the one: exactly there the numbers are batched. It holds wherever the call is written, in a loop,
a branch or a custom rule inside of the vmap, since what these close over becomes their argument.
They are traced for one example first, where the primitive has a shape and no meaning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Iterator, Sequence

import torch

from xfunc.core import ambient
from xfunc.core.avals import Aval, aval_of, hlo_shape
from xfunc.hlo import Builder
from xfunc.program.bind import bind
from xfunc.program.primitive import Dims, Primitive, Tensor
from xfunc.torchlib.batching import at_dim
from xfunc.trace.lowering import Lowering

TRANSPOSES = {
    "psum": "psum",
    "all_gather": "psum_scatter",
    "psum_scatter": "all_gather",
    "all_to_all": "all_to_all",
    "ppermute": "ppermute",
}


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

    def apply(self, kind: str, x: Tensor, perm: tuple[tuple[int, int], ...] = ()) -> Tensor:
        """What `x` of all examples makes: see `xfunc.sharding.collective_primitive`."""
        make = AmongMaximum if kind == "pmax" else Among
        return bind(make(kind, aval_of(x), self.size, perm), [x, self.place()])[0]


@contextlib.contextmanager
def named(name: str, size: int, numbers: Tensor) -> Iterator[None]:
    """Have an axis of this name, in a block."""
    before = ambient.named_axes()
    ambient.set_named_axes((*before, NamedAxis(name, size, weakref.ref(numbers))))
    try:
        yield
    finally:
        ambient.set_named_axes(before)


@dataclasses.dataclass(frozen=True)
class Among(Primitive):
    """A primitive that is linear in the values of all examples; see `Primitive`.

    It has no pair: at a vmap whose numbers are batched, that would be one of all examples.

    Attributes:
        kind: which one.
        aval: of the value of one example.
        size: the number of examples.
        perm: of ``ppermute``: pairs of places, from and to.
    """

    kind: str
    aval: Aval
    size: int
    perm: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        return self.kind

    @property
    def outputs(self) -> tuple[Aval, ...]:
        shape = self.aval.shape
        if self.kind == "all_gather":
            shape = (self.size, *shape)
        elif self.kind == "psum_scatter":
            shape = shape[1:]
        return (Aval(shape, self.aval.dtype),)

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        # See NOTE [which vmap it is].
        return _one_example(self).apply(args)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        ct = cts[0]
        if ct is None:
            return [torch.zeros_like(args[0])]
        back = tuple((target, source) for source, target in self.perm)
        transposed = Among(TRANSPOSES[self.kind], self.outputs[0], self.size, back)
        return bind(transposed, [ct, args[1]])

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        tangent = tangents[0]
        return [None] if tangent is None else list(bind(self, [tangent, args[1]]))

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        if dims[1] is not None:  # This is the one.
            every = at_dim(args[0], dims[0], 0, n)
            shared = self.kind in ("psum", "pmax", "all_gather")
            return [self._of_all(every)], [None if shared else 0]
        before = 1 if self.kind in ("psum_scatter", "all_to_all") else 0
        after = 1 if self.kind in ("all_gather", "all_to_all") else 0
        shape = (*self.aval.shape[:before], n, *self.aval.shape[before:])
        inner = dataclasses.replace(self, aval=Aval(shape, self.aval.dtype))
        (out,) = bind(inner, [at_dim(args[0], dims[0], before, n), args[1]])
        # Batch first and contiguous, as in `Scan.batch`.
        return [out.movedim(after, 0).clone(memory_format=torch.contiguous_format)], [0]

    def _of_all(self, x: Tensor) -> Tensor:
        """What the values of all examples, along axis 0, make; along axis 0 if they differ."""
        match self.kind:
            case "psum" | "psum_scatter":
                return x.sum(0, dtype=x.dtype)
            case "pmax":
                return x.amax(0)
            case "all_gather":
                return x.clone()  # torch would take the argument itself for what it was before.
            case "all_to_all":
                return x.transpose(0, 1)
        sources = {target: source for source, target in self.perm}
        nothing = torch.zeros_like(x[0])
        rows = [x[sources[k]] if k in sources else nothing for k in range(self.size)]
        return torch.stack(rows)


@dataclasses.dataclass(frozen=True)
class AmongMaximum(Among):
    """``pmax``; equal maxima share the derivative, as in torch's amax."""

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        ct = cts[0]
        if ct is None:
            return [torch.zeros_like(args[0])]
        return [self._sum(ct, args) * self._part(args)]

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        tangent = tangents[0]
        return [None] if tangent is None else [self._sum(tangent * self._part(args), args)]

    def _sum(self, x: Tensor, args: Sequence[Tensor]) -> Tensor:
        return bind(Among("psum", aval_of(x), self.size), [x, args[1]])[0]

    def _part(self, args: Sequence[Tensor]) -> Tensor:
        """Where the value is the maximum, the reciprocal of how many are; else zero."""
        is_max = (args[0] == bind(self, args)[0]).to(args[0].dtype)
        return is_max / self._sum(is_max, args)


@functools.lru_cache(maxsize=1024)
def _one_example(primitive: Among) -> Lowering:
    b = Builder(primitive.name)
    body = b.computation(primitive.name)
    avals = (primitive.aval, Aval((), torch.int64))
    values = [body.parameter(hlo_shape(a)) for a in avals]
    out = body.custom_call("xfunc_named_axis", values, hlo_shape(primitive.outputs[0]))
    module = b.build(body.build(body.tuple([out])))
    return Lowering.of(b.name, module, avals, primitive.outputs)
