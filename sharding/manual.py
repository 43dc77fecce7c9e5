"""`Region`: code that each device runs on its own part of the data, and how values get in and out.

NOTE [borders]: XLA's partitioner sees a whole program. ``SPMDFullToShardShape`` replaces an array
by one device's shard of it, and ``SPMDShardToFullShape`` puts the shards together again. In between
everything is *manual*: the partitioner leaves it unchanged. A region that is manual over only some
axes of the mesh is sharded further over the others (*subgroups*).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

from xfunc.core import ambient
from xfunc.graph.build import CustomCall
from xfunc.graph.node import Node, array_type
from xfunc.hlo.attributes import said
from xfunc.hlo.spmd.annotations import constrained, unspecified
from xfunc.hlo.spmd.collectives import DEVICES, Groups
from xfunc.hlo.spmd.tiles import HloSharding
from xfunc.sharding.mesh import AbstractMesh
from xfunc.sharding.spec import PartitionSpec, tiles_on


@dataclasses.dataclass(frozen=True)
class Region:
    """A manual region.

    Attributes:
        mesh: of the devices.
        axes: the mesh axes that it is manual over: its own, and those of the region around it.
        own: its own axes.
        checked: the axes along which the types of values are tracked (see `xfunc.program.vma`).
    """

    mesh: AbstractMesh
    axes: tuple[str, ...]
    own: tuple[str, ...]
    checked: tuple[str, ...] = ()

    def size(self, names: Sequence[str]) -> int:
        """The number of devices along these axes."""
        return math.prod(self.mesh.shape[n] for n in names)

    @property
    def is_whole(self) -> bool:
        """Whether it is manual over all devices, so that the partitioner has nothing to do."""
        return self.size(self.axes) == self.mesh.size

    @property
    def is_trivial(self) -> bool:
        """Whether its own axes have one device each."""
        return self.size(self.own) == 1

    def missing(self, spec: PartitionSpec) -> tuple[str, ...]:
        """Its own axes, of several devices, that do not shard an array with this spec."""
        named = {n for names in spec.axes for n in names}
        return tuple(n for n in self.own if n not in named and self.mesh.shape[n] > 1)

    def local_shape(self, shape: Sequence[int], spec: PartitionSpec) -> tuple[int, ...]:
        """The shape of one device's shard."""
        return tuple(n // k for n, k in zip(shape, self._factors(spec, len(shape)), strict=True))

    def global_shape(self, shape: Sequence[int], spec: PartitionSpec) -> tuple[int, ...]:
        """The global shape, of all devices' shards together."""
        return tuple(n * k for n, k in zip(shape, self._factors(spec, len(shape)), strict=True))

    def _factors(self, spec: PartitionSpec, ndim: int) -> list[int]:
        sizes = [self.size(names) for names in spec.axes[:ndim]]
        return [*sizes, *(1 for _ in range(ndim - len(sizes)))]

    def enter(self, x: Node, spec: PartitionSpec) -> Node:
        """One device's shard of an array sharded as `spec`."""
        if self.is_trivial:
            return x
        ndim = len(x.dims)
        outer = tuple(n for n in self.axes if n not in self.own)
        free = self._free(ndim)
        divided = constrained(x, tiles_on(self.mesh, spec, ndim, outer).to_proto(), free)
        type = array_type(x.dtype, self.local_shape(x.dims, spec))
        how = CustomCall("SPMDFullToShardShape", unspecified(free), self.manual(ndim).wire)
        return Node("custom-call", type, (divided,), how)

    def leave(self, x: Node, spec: PartitionSpec) -> Node:
        """The whole array, put together from the devices' shards; `x` is one device's."""
        if self.is_trivial:
            return x
        ndim = len(x.dims)
        outer = tuple(n for n in self.axes if n not in self.own)
        free = self._free(ndim)
        part = constrained(x, self.manual(ndim).to_proto(), free)
        type = array_type(x.dtype, self.global_shape(x.dims, spec))
        tiles = tiles_on(self.mesh, spec, ndim, outer)
        how = CustomCall("SPMDShardToFullShape", unspecified(free), tiles.wire)
        more = said({DEVICES: str(self.mesh.size)})
        return Node("custom-call", type, (part,), how, more=more)

    def manual(self, ndim: int) -> HloSharding:
        """The annotation for the partitioner that each device has its own value."""
        return tiles_on(self.mesh, PartitionSpec(), ndim, self.axes)

    def _free(self, ndim: int) -> tuple[int, ...]:
        return () if self.is_whole else tuple(range(ndim))

    def groups(self, names: Sequence[str]) -> Groups:
        """The devices in groups that extend along axes; the first axis varies slowest."""
        return _groups(self.mesh, tuple(names), not self.is_whole)


@functools.lru_cache(maxsize=1024)
def _groups(mesh: AbstractMesh, names: tuple[str, ...], partly: bool) -> Groups:
    place = {n: i for i, n in enumerate(mesh.axis_names)}
    within = [place[n] for n in names]
    rest = [a for a in range(mesh.ndim) if a not in within]
    size = math.prod(mesh.axis_sizes[a] for a in within)
    return Groups(size, mesh.layout.order([*rest, *within]), names, partly)


@contextlib.contextmanager
def inside(region: Region) -> Iterator[None]:
    """A block inside a region."""
    before = ambient.set_region(region)
    try:
        yield
    finally:
        ambient.set_region(before)
