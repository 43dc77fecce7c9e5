"""The mesh of several shardings: its axes place each device as the shardings list it."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd.common_mesh import CommonMesh, common_mesh
from xfunc.hlo.spmd.tiles import DeviceAssignment, HloSharding, parse

pytestmark = pytest.mark.quick


def tiles(text: str) -> tuple[pb.OpSharding, int]:
    found = parse(text)
    assert found is not None
    return found.to_proto(), len(found.dims)


def listed(sizes: list[int], devices: list[int], replicated: int = 1) -> tuple[pb.OpSharding, int]:
    """As `Placement`s are: every device by number."""
    return HloSharding(
        tuple(sizes), 1, replicated, DeviceAssignment.listing(devices)
    ).to_proto(), len(sizes)


def by_axes(mesh: CommonMesh, names: list[tuple[str, ...]]) -> dict[int, tuple[int, ...]]:
    """The position of each device along dimensions sharded over some axes."""
    count = math.prod(mesh.sizes)
    places = np.stack(np.unravel_index(range(count), mesh.sizes))
    at = dict(zip(mesh.names, places, strict=True))
    size = dict(zip(mesh.names, mesh.sizes, strict=True))
    along = []
    for axes in names:
        position = np.zeros(count, int)
        for n in axes:
            position = position * size[n] + at[n]
        along.append(position)
    return {d: tuple(map(int, row)) for d, row in enumerate(np.stack(along, -1))}


def by_tiles(found: HloSharding) -> dict[int, tuple[int, ...]]:
    grid = found.grid()
    return {int(grid[at]): at[:-1] for at in itertools.product(*map(range, grid.shape))}


@pytest.mark.parametrize("seed", range(20))
def test_common_mesh_axes_place_devices_like_tiles(seed: int) -> None:
    """Shardings of arrays over the axes of one random mesh."""
    r = random.Random(seed)
    sizes = r.choice([(8,), (4, 2), (2, 4), (2, 2, 2), (2, 3), (3, 2, 2), (6, 2), (16, 4, 3)])
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    known: list[HloSharding] = []
    for _ in range(4):
        axes = [*range(len(sizes))]
        r.shuffle(axes)
        used = [axes[:1], axes[1:2]][: r.randint(1, 2)]
        if r.random() < 0.3:
            used = [axes[:2], []]
        flat = [a for names in used for a in names]
        rest = [a for a in range(len(sizes)) if a not in flat]
        order = grid.transpose([*flat, *rest]).ravel()
        dims = tuple(math.prod(sizes[a] for a in names) for names in used)
        spare = math.prod(sizes[a] for a in rest)
        if r.random() < 0.5:  # as a placement is listed
            order = np.sort(order.reshape(-1, spare), -1).ravel()
        known.append(HloSharding(dims, 1, spare, DeviceAssignment.listing(order)))
    mesh = common_mesh([(t.to_proto(), len(t.dims)) for t in known], grid.size)
    assert mesh is not None
    assert math.prod(mesh.sizes) == grid.size
    for t in known:
        assert by_axes(mesh, [*mesh.axes(t.to_proto(), len(t.dims)).dims]) == by_tiles(t), t


def test_common_mesh_splits_axes_minimally() -> None:
    rows, blocks = tiles("{devices=[8,1]<=[8]}"), tiles("{devices=[4,2]<=[8]}")
    columns = tiles("{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}")
    mesh = common_mesh([rows], 8)
    assert mesh is not None
    assert mesh.sizes == (8,)
    mesh = common_mesh([rows, blocks, columns], 8)
    assert mesh is not None
    assert mesh.sizes == (4, 2)
    assert mesh.axes(*rows).dims == (("axis_0", "axis_1"), ())
    assert mesh.axes(*blocks).dims == (("axis_0",), ("axis_1",))
    assert mesh.axes(*columns).dims == ((), ("axis_1",))


def test_common_mesh_manual_axes() -> None:
    """As a region has them that is manual over some axes, in either order of the subgroups."""
    kinds = [pb.OpSharding.MANUAL, pb.OpSharding.REPLICATED]
    one = pb.OpSharding(
        type=pb.OpSharding.OTHER,
        tile_assignment_dimensions=[1, 2, 2, 2],
        last_tile_dims=kinds,
        iota_reshape_dims=[2, 2, 2],
        iota_transpose_perm=[1, 2, 0],
    )
    other = pb.OpSharding(
        type=pb.OpSharding.OTHER,
        tile_assignment_dimensions=[1, 2, 2, 2],
        last_tile_dims=kinds[::-1],
        iota_reshape_dims=[2, 2, 2],
        iota_transpose_perm=[1, 0, 2],
    )
    mesh = common_mesh([(one, 2), (other, 2)], 8)
    assert mesh is not None
    assert mesh.sizes == (2, 2, 2)
    for sharding in (one, other):
        found = mesh.axes(sharding, 2)
        assert found.dims == ((), ("axis_1",))
        assert found.manual == ("axis_2",)
    every = mesh.axes(pb.OpSharding(type=pb.OpSharding.MANUAL), 1)
    assert every.manual == mesh.names
    assert every.dims == ((),)


def test_common_mesh_of_replicated() -> None:
    mesh = common_mesh([(pb.OpSharding(type=pb.OpSharding.REPLICATED), 2)], 8)
    assert mesh == CommonMesh((8,))


@pytest.mark.parametrize(
    "shardings",
    [
        [tiles("{devices=[2,3]<=[6]}"), tiles("{devices=[3,2]<=[6]}")],
        [listed([6], [0, 1, 2, 4, 3, 5])],
        [listed([2], [3, 4, 5, 0, 1, 2], replicated=3)],
        [tiles("{devices=[2,2]<=[4]}")],
    ],
    ids=["sizes", "order", "reversed", "count"],
)
def test_common_mesh_incompatible_shardings(shardings: list[tuple[pb.OpSharding, int]]) -> None:
    assert common_mesh(shardings, 6) is None
