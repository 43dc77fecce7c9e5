"""The primitives by which the devices of a manual region communicate, and their rules.

There is one array per device. Most of the primitives are linear in the arrays of all devices of a
group together, and are differentiated as such:

================  ======================================  ================
kind              what a device gets                      its transpose
================  ======================================  ================
``psum``          the sum                                 ``psum``
``all_gather``    all arrays, stacked on a new axis 0     ``psum_scatter``
``psum_scatter``  row k of the sum, k being its place     ``all_gather``
``all_to_all``    row k of the array of each, stacked     ``all_to_all``
``ppermute``      the array of another one, or zeros      ``ppermute`` back
================  ======================================  ================
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch

from xfunc.core.avals import Aval, hlo_shape
from xfunc.errors import ShardingError, fail
from xfunc.hlo import Builder, ComputationBuilder, Value
from xfunc.hlo.spmd import collectives as hlo
from xfunc.program.bind import bind, or_zeros, zeros
from xfunc.program.named_axes import TRANSPOSES
from xfunc.program.primitive import Dims, Primitive, Tensor
from xfunc.sharding.manual import Region
from xfunc.torchlib import functorch
from xfunc.torchlib.batching import at_dim, axes_of
from xfunc.trace import tracing
from xfunc.trace.lowering import Lowering


@dataclasses.dataclass(frozen=True)
class Collective(Primitive):
    """A linear primitive; see `Primitive` for its methods.

    Attributes:
        kind: which one.
        aval: of what each device gives.
        region: where they are.
        axes: along which a group extends.
        perm: of ``ppermute``: pairs of places in the group, from and to.
    """

    kind: str
    aval: Aval
    region: Region
    axes: tuple[str, ...]
    perm: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        return self.kind

    @property
    def outputs(self) -> tuple[Aval, ...]:
        shape = self.aval.shape
        if self.kind == "all_gather":
            shape = (self.region.size(self.axes), *shape)
        elif self.kind == "psum_scatter":
            shape = shape[1:]
        return (Aval(shape, self.aval.dtype),)

    def transposed(self) -> Collective:
        """What takes a cotangent of the result to one of the argument."""
        back = tuple((target, source) for source, target in self.perm)
        kind = TRANSPOSES[self.kind]
        return dataclasses.replace(self, kind=kind, aval=self.outputs[0], perm=back)

    def write(self, body: ComputationBuilder, x: Value) -> Value:
        """Add it to a computation."""
        groups = self.region.groups(self.axes)
        match self.kind:
            case "psum":
                return hlo.all_reduce(body, x, groups, "add")
            case "all_gather":
                return hlo.all_gather(body, x, groups)
            case "psum_scatter":
                return hlo.reduce_scatter(body, x, groups)
            case "all_to_all":
                return hlo.all_to_all(body, x, groups)
            case _:
                return hlo.collective_permute(body, x, groups, self.perm)

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return _lowering(self).apply(args)

    def pair(self, wrt: tuple[bool, ...]) -> CollectivePair | None:
        return CollectivePair(self)

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        return bind(self.transposed(), [or_zeros(cts[0], self.outputs[0])])

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        tangent = tangents[0]
        return [None] if tangent is None else list(bind(self, [tangent]))

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        inner, before, after = self.batched(n)
        (out,) = bind(inner, [at_dim(args[0], dims[0], before, n)])
        # Batch first and contiguous, as in `Scan.batch`.
        return [out.movedim(after, 0).clone(memory_format=torch.contiguous_format)], [0]

    def batched(self, n: int) -> tuple[Collective, int, int]:
        """The primitive of a batch, and where the batch is before and after."""
        if shared := set(axes_of(n)) & set(self.axes):
            fail(
                ShardingError,
                f"{self.name} is along {min(shared)!r}, which divides the examples of a vmap "
                "(spmd_axis_name) around the shard_map",
                "name another axis; give the vmap an axis_name, and communicate along that, "
                "where examples are to communicate.",
            )
        before = 1 if self.kind in ("psum_scatter", "all_to_all") else 0
        after = 1 if self.kind in ("all_gather", "all_to_all") else 0
        shape = (*self.aval.shape[:before], n, *self.aval.shape[before:])
        return dataclasses.replace(self, aval=Aval(shape, self.aval.dtype)), before, after


@dataclasses.dataclass(frozen=True)
class Total(Collective):
    """The ``psum`` of a gradient along axes along which all devices compute the same.

    If such an axis comes to divide the examples of a batch, each of them is on one device only.
    """

    def pair(self, wrt: tuple[bool, ...]) -> None:
        return None

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        alone = tuple(a for a in self.axes if a in axes_of(n))
        if not alone:
            return super().batch(dims, n, args)
        rest = dataclasses.replace(self, axes=tuple(a for a in self.axes if a not in alone))
        (out,), out_dims = rest.batch(dims, n, args)
        return [out * self.region.size(alone)], out_dims


@dataclasses.dataclass(frozen=True)
class Maximum(Collective):
    """``pmax``; equal maxima share the derivative, as in torch's amax."""

    def write(self, body: ComputationBuilder, x: Value) -> Value:
        return hlo.all_max(body, x, self.region.groups(self.axes))

    def vjp(
        self, args: Sequence[Tensor], cts: Sequence[Tensor | None], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        if cts[0] is None:
            return [zeros(self.aval)]
        return [self._sum(cts[0]) * self._share(args[0])]

    def jvp(self, args: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        tangent = tangents[0]
        return [None] if tangent is None else [self._sum(tangent * self._share(args[0]))]

    def _sum(self, x: Tensor) -> Tensor:
        return bind(Collective("psum", self.aval, self.region, self.axes), [x])[0]

    def _share(self, x: Tensor) -> Tensor:
        """Where `x` is the maximum, the reciprocal of how many are; else zero."""
        is_max = (x == bind(self, [x])[0]).to(x.dtype)
        return is_max / self._sum(is_max)


@dataclasses.dataclass(frozen=True)
class CollectivePair:
    """Reverse mode of first order: see `Pair`."""

    primitive: Collective
    wrt: tuple[int, ...] = (0,)
    cts: tuple[int, ...] = (0,)
    n_outputs: int = 1

    def forward(self, args: Sequence[Tensor]) -> list[Tensor]:
        return self.primitive.emit(args)

    def backward(
        self, args: Sequence[Tensor], residuals: Sequence[Tensor], cts: Sequence[Tensor | None]
    ) -> list[Tensor]:
        return self.primitive.vjp(args, cts, self.wrt)

    def batched(self, dims: Dims, n: int) -> tuple[CollectivePair, Dims, Dims, Dims]:
        inner, before, after = self.primitive.batched(n)
        return CollectivePair(inner), (before,), (after,), (before,)


def place(region: Region, axes: tuple[str, ...]) -> Tensor:
    """Which of its group a device is, as an int64 scalar."""
    trace = tracing.current()
    assert trace is not None
    with functorch.bottom_level():
        (found,) = _place(region, axes).apply([])
    trace.register([found])
    return found


@functools.lru_cache(maxsize=1024)
def _place(region: Region, axes: tuple[str, ...]) -> Lowering:
    return _lowered(
        "axis_index",
        (),
        Aval((), torch.int64),
        lambda b: hlo.place_in_group(b, region.groups(axes)),
    )


@functools.lru_cache(maxsize=4096)
def _lowering(primitive: Collective) -> Lowering:
    return _lowered(primitive.name, (primitive.aval,), primitive.outputs[0], primitive.write)


def _lowered(
    name: str, avals: tuple[Aval, ...], output: Aval, write: Callable[..., Value]
) -> Lowering:
    b = Builder(name)
    body = b.computation(name)
    result = write(body, *(body.parameter(hlo_shape(a)) for a in avals))
    return Lowering.of(name, b.build(body.build(body.tuple([result]))), avals, (output,))
