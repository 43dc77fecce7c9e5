"""`make_array_from_process_local_data`: one array of what each process has of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from xfunc.backends.placement import placement_of, remember
from xfunc.errors import ShardingError, fail, shown
from xfunc.sharding.parts import Target, assemble
from xfunc.sharding.spec import NamedSharding, PartitionSpec, check_shape, resolve_sharding


def make_array_from_process_local_data(
    sharding: NamedSharding | PartitionSpec,
    local_data: object,
    global_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """A sharded tensor, of which each process gives the part that its devices hold.

    Args:
        sharding: of the whole, or a spec on the mesh in use.
        local_data: the rows (columns, ...) of this process, in their order: a tensor or an array.
        global_shape: of the whole; by default, what the parts make up. Along a dimension in which
            it equals that of `local_data`, this is the whole.

    Raises:
        ShardingError: the shapes do not fit the sharding.

    Source: ``jax.make_array_from_process_local_data``.
    """
    given = resolve_sharding(sharding, "the sharding of make_array_from_process_local_data")
    data = torch.as_tensor(local_data).detach().cpu().contiguous()
    placement = placement_of(given.tiles(data.ndim))
    # The tiles that this process holds, as places along each dimension.
    dims = (1,) * data.ndim if placement is None else placement.tiles.dims
    unit = Target(dims, data.dtype, placement=placement)
    starts = [start for start, _ in unit.boxes()]
    held = [sorted({s[d] for s in starts}) for d in range(data.ndim)]
    if global_shape is None:
        shape = tuple(
            n * k // len(places) for n, k, places in zip(data.shape, dims, held, strict=True)
        )
    else:
        shape = tuple(global_shape)
    check_shape(given, shape, "the array to make")
    part = tuple(n // k for n, k in zip(shape, dims, strict=True))
    wanted = tuple(n * len(places) for n, places in zip(part, held, strict=True))
    fits = len(shape) == data.ndim and all(
        n in (w, s) for n, w, s in zip(data.shape, wanted, shape, strict=True)
    )
    if not fits or math.prod(map(len, held)) != len(set(starts)):
        fail(
            ShardingError,
            f"make_array_from_process_local_data was given {shown(tuple(data.shape))} of an array "
            f"of shape {shape}, and the devices of this process hold {wanted} of it",
            "pass the part that this process holds, or the whole.",
        )
    target = Target(shape, data.dtype, placement=placement, sharding=given)
    parts = {}
    for start, (box, size) in zip(starts, target.boxes(), strict=True):
        at = [
            start[d] if data.shape[d] == shape[d] else held[d].index(start[d])
            for d in range(data.ndim)
        ]
        index = tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, size, strict=True))
        parts[box] = data[index]
    found = assemble(parts, target)
    remember(found, given)
    return found
