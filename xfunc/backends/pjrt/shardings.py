"""Placements as JAX's shardings, and back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xfunc.backends.pjrt import run_barrier
from xfunc.backends.pjrt.client import jax, x64
from xfunc.backends.placement import Placement, read
from xfunc.hlo.spmd.tiles import HloSharding

if TYPE_CHECKING:
    from jax import Array
    from jax.sharding import Mesh, Sharding

    from xfunc.hlo.spmd.common_mesh import CommonMesh


@functools.lru_cache(maxsize=4096)
def sharding(placement: Placement | None) -> Sharding:
    """JAX's sharding for this placement; None: replicated."""
    devices = tuple(jax().devices())
    if len(devices) == 1:
        return jax().sharding.SingleDeviceSharding(devices[0])
    from jax._src.sharding_impls import GSPMDSharding
    from jaxlib.xla_client import HloSharding as XlaSharding
    from jaxlib.xla_client import OpSharding

    said = OpSharding()
    tiles = HloSharding(()) if placement is None else placement.tiles
    said.ParseFromString(tiles.to_proto().SerializeToString())
    return GSPMDSharding(devices, XlaSharding.from_proto(said))


@functools.lru_cache(maxsize=4096)
def placement_of(known: Sharding, ndim: int) -> Placement | None:
    """The placement of an array with such a sharding."""
    return read(str(known._to_xla_hlo_sharding(ndim)))


def mesh_of(known: CommonMesh) -> Mesh:
    """JAX's mesh."""
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array(jax().devices()).reshape(known.sizes), known.names)


def sharding_on(known: CommonMesh, placement: Placement | None) -> Sharding:
    """JAX's sharding for this placement, on a mesh that it can be written in."""
    from jax.sharding import NamedSharding, PartitionSpec

    if placement is None:
        return NamedSharding(mesh_of(known), PartitionSpec())
    tiles = placement.tiles
    dims = known.axes(tiles.to_proto(), len(tiles.dims)).dims
    return NamedSharding(mesh_of(known), PartitionSpec(*dims))


def moved(array: Array, to: Placement | None) -> Array:
    """The same array, resharded."""
    array = _on_no_mesh(array)
    with partitioner(shardy=False), x64()(True):
        if run_barrier.is_needed():
            return _mover_between(to, array.sharding, array.shape, array.dtype)(array)
        return _mover(to)(array)


def _on_no_mesh(array: Array) -> Array:
    """The same array. JAX writes shardings over the mesh of an argument, and not all can be."""
    from jax.sharding import NamedSharding

    if not isinstance(array.sharding, NamedSharding):
        return array
    where = sharding(placement_of(array.sharding, array.ndim))
    shards = [s.data for s in array.addressable_shards]
    with x64()(True):
        return jax().make_array_from_single_device_arrays(array.shape, where, shards)


@functools.lru_cache(maxsize=1024)
def _mover_between(
    to: Placement | None, where: Sharding, shape: tuple[int, ...], dtype: object
) -> Callable[[Array], Array]:
    run = _mover(to).lower(jax().ShapeDtypeStruct(shape, dtype, sharding=where)).compile()
    described = str(where._to_xla_hlo_sharding(len(shape))), to, shape, dtype
    return run_barrier.together("device_put", run, run, None, described)


@functools.lru_cache(maxsize=1024)
def _mover(to: Placement | None) -> Any:
    return jax().jit(lambda x: x, out_shardings=sharding(to))


def partitioner(*, shardy: bool) -> contextlib.AbstractContextManager[None]:
    """Make JAX compile with one of its partitioners in a block: Shardy or GSPMD."""
    jax()
    from jax._src import config

    return config.use_shardy_partitioner(shardy)
