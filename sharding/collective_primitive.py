"""The primitives by which the devices of a manual region communicate, and their rules.

There is one array per device. `xfunc.program.collective_ops` defines the result of combining them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch

from xfunc.core.avals import Aval, array_of
from xfunc.errors import ShardingError, fail
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.graph.node import Node, unattributed
from xfunc.hlo.spmd import collectives as hlo
from xfunc.program.bind import bind
from xfunc.program.communication import Communication
from xfunc.program.custom_reverse_rule import CustomReverseRule
from xfunc.program.primitive import Dims, ReverseRule, Tensor
from xfunc.sharding.manual import Region
from xfunc.torchlib import functorch
from xfunc.torchlib.batching import at_dim, axes_of
from xfunc.trace import tracing
from xfunc.trace.lowering import HloProgram


@dataclasses.dataclass(frozen=True)
class Collective(Communication):
    """The primitive; see `Primitive` for its methods.

    Attributes:
        region: where the devices are.
        axes: along which a group extends.
    """

    region: Region
    axes: tuple[str, ...]

    @property
    def size(self) -> int:
        return self.region.size(self.axes)

    def made(self, x: Node) -> Node:
        """The result on one device."""
        return self.exchange.made(x, self.region.groups(self.axes))

    def emit(self, args: Sequence[Tensor]) -> list[Tensor]:
        return _lowering(self).apply(args)

    def reverse_rule(self, wrt: tuple[bool, ...]) -> ReverseRule | None:
        return CustomReverseRule(self)

    def batch(
        self, dims: Dims, n: int, args: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[int | None]]:
        inner, (before,), (after,) = self.mapped(dims, n)
        (out,) = bind(inner, [at_dim(args[0], dims[0], before, n)])
        # Batch first and contiguous, as in `Scan.batch`.
        return [out.movedim(after, 0).clone(memory_format=torch.contiguous_format)], [0]

    def mapped(self, dims: Dims, n: int) -> tuple[Collective, tuple[int], tuple[int]]:
        """The primitive of a batch, and the batch dimensions of its argument and result."""
        if shared := set(axes_of(n)) & set(self.axes):
            fail(
                ShardingError,
                f"{self.name} is along {min(shared)!r}, which shards the examples of a vmap "
                "(spmd_axis_name) around the shard_map",
                "use another axis; to communicate between examples, give the vmap an "
                "axis_name and use that.",
            )
        return self.of_batch(n), (self.exchange.before,), (self.exchange.after,)


@dataclasses.dataclass(frozen=True)
class Total(Collective):
    """The ``psum`` of a gradient along axes along which all devices compute the same.

    If such an axis also shards the examples of a batch, each example is on one device only.
    """

    def reverse_rule(self, wrt: tuple[bool, ...]) -> None:
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


def axis_index(region: Region, axes: tuple[str, ...]) -> Tensor:
    """The position of a device in its group, as an int64 scalar."""
    trace = tracing.current()
    assert trace is not None
    with functorch.bottom_level():
        (result,) = _axis_index(region, axes).apply([])
    trace.register([result])
    return result


@functools.lru_cache(maxsize=1024)
def _axis_index(region: Region, axes: tuple[str, ...]) -> HloProgram:
    return _lowered(
        "axis_index",
        (),
        Aval((), torch.int64),
        lambda: hlo.place_in_group(region.groups(axes)),
    )


@functools.lru_cache(maxsize=4096)
def _lowering(primitive: Collective) -> HloProgram:
    return _lowered(primitive.name, (primitive.aval,), primitive.outputs[0], primitive.made)


def _lowered(
    name: str, avals: tuple[Aval, ...], output: Aval, made: Callable[..., Node]
) -> HloProgram:
    with unattributed():
        given = build.parameters([array_of(a) for a in avals])
        graph = Graph(name, given, [made(*given)])
    return HloProgram.of(name, graph, avals, (output,))
