"""`common_mesh`: named axes in which all shardings of a module can be written.

HLO lists for each sharding which device holds which tile, and knows no mesh. Shardy has one mesh
with named axes, and shards each dimension of a value over some of them. Devices are laid out row by
row, so those along an axis are evenly spaced: it has a *stride* and a size. The axes of all
shardings together, split wherever one begins or ends within another, are those of the mesh.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd.tiles import DeviceAssignment

_Devices = npt.NDArray[np.int64]
_Run = tuple[int, int]
"""Evenly spaced devices: their stride and number."""


@dataclasses.dataclass(frozen=True)
class Axes:
    """The axes that shard a value, the slowest first.

    Attributes:
        dims: those of each dimension.
        manual: those over which devices run their own programs.
    """

    dims: tuple[tuple[str, ...], ...]
    manual: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class CommonMesh:
    """All devices in order, laid out along named axes.

    Attributes:
        sizes: of the axes.
    """

    sizes: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(f"axis_{k}" for k in range(len(self.sizes)))

    def axes(self, sharding: pb.OpSharding, ndim: int) -> Axes:
        """The axes of a sharding that the mesh was made for."""
        if sharding.type == pb.OpSharding.MANUAL:
            return Axes(((),) * ndim, self.names)
        runs = _runs(sharding, ndim, math.prod(self.sizes))
        assert runs is not None
        *dims, manual = (tuple(n for run in of for n in self._within(run)) for of in runs)
        return Axes(tuple(dims), manual)

    def _within(self, run: _Run) -> list[str]:
        stride, size = run
        strides = (math.prod(self.sizes[k + 1 :]) for k in range(len(self.sizes)))
        known = zip(self.names, strides, strict=True)
        return [n for n, k in known if stride <= k < stride * size]


def common_mesh(shardings: Iterable[tuple[pb.OpSharding, int]], count: int) -> CommonMesh | None:
    """A mesh in which all these shardings can be written.

    None: there is none, because they need different meshes, or devices are not in order.

    Args:
        shardings: each with the number of dimensions of its value.
        count: the number of devices.
    """
    distinct = {(s.SerializeToString(deterministic=True), n): (s, n) for s, n in shardings}
    ends = {1, count}
    for sharding, ndim in distinct.values():
        runs = _runs(sharding, ndim, count)
        if runs is None:
            return None
        ends.update(k for of in runs for stride, size in of for k in (stride, stride * size))
    pairs = [*itertools.pairwise(sorted(ends))]
    if any(b % a for a, b in pairs):
        return None
    return CommonMesh(tuple(b // a for a, b in reversed(pairs)))


def _listed(sharding: pb.OpSharding) -> _Devices:
    """The devices of a sharding, tile by tile; none if it has no tiles."""
    if sharding.iota_reshape_dims:
        order = DeviceAssignment(
            tuple(sharding.iota_reshape_dims), tuple(sharding.iota_transpose_perm)
        )
        return order.devices()
    return np.array(sharding.tile_assignment_devices, dtype=np.int64)


def _runs(sharding: pb.OpSharding, ndim: int, count: int) -> list[list[_Run]] | None:
    """The devices along each dimension of a value, and the manual ones, the slowest first.

    None: they are not evenly spaced, it is another number of devices, or one runs it alone.
    """
    if sharding.type in (pb.OpSharding.TUPLE, pb.OpSharding.MAXIMAL):
        return None  # Shardy ignores it on a custom call that it does not know.
    if sharding.type != pb.OpSharding.OTHER:
        return [[] for _ in range(ndim + 1)]
    sizes = [*sharding.tile_assignment_dimensions]
    kinds = [*sharding.last_tile_dims]
    if sharding.replicate_on_last_tile_dim:
        kinds = [pb.OpSharding.REPLICATED]
    listed = _listed(sharding)
    if len(listed) != count or len(sizes) != ndim + len(kinds):
        return None
    if not {*kinds} <= {pb.OpSharding.MANUAL, pb.OpSharding.REPLICATED}:
        return None
    of_kind = zip(sizes[ndim:], kinds, strict=True)
    manual = math.prod(n for n, kind in of_kind if kind == pb.OpSharding.MANUAL)
    grid = listed.reshape(sizes)
    if kinds == [pb.OpSharding.REPLICATED, pb.OpSharding.MANUAL]:
        grid = grid.swapaxes(-1, -2)
    grid = grid.reshape(*sizes[:ndim], manual, -1)
    # Devices with equal parts may be listed in any order, and so may manual devices.
    grid = np.sort(grid, -1)
    grid = np.take_along_axis(grid, np.argsort(grid[..., 0], -1)[..., None], -2)
    found: list[list[_Run]] = []
    for d in range(grid.ndim):
        line = grid[tuple(slice(None) if k == d else 0 for k in range(grid.ndim))]
        runs = _evenly(line - line[0])
        if runs is None:
            return None
        found.append(runs)
    expected = sum(
        np.expand_dims(_spread(runs), [k for k in range(grid.ndim) if k != d])
        for d, runs in enumerate(found)
    )
    return found[:-1] if grid.flat[0] == 0 and np.array_equal(grid, expected) else None


def _evenly(line: _Devices) -> list[_Run] | None:
    """Numbers that begin with 0 as sums of evenly spaced ones, the slowest first."""
    result: list[_Run] = []
    done = 1
    while done < len(line):
        stride, size = int(line[done]), 1
        while done * size < len(line) and line[done * size] == stride * size:
            size += 1
        while len(line) % (done * size):
            size -= 1
        if stride < 1 or size == 1:
            return None
        result.insert(0, (stride, size))
        done *= size
    return result


def _spread(runs: Sequence[_Run]) -> _Devices:
    """The sums: the reverse of `_evenly`."""
    result = np.zeros(1, dtype=np.int64)
    for stride, size in runs:
        result = (result[:, None] + stride * np.arange(size)).ravel()
    return result
