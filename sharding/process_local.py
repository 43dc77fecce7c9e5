"""Arrays distributed over processes: assembling them, and finding a process's part."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import cast

import torch

from xfunc.backends import processes
from xfunc.backends.placement import placement_of, record_sharding
from xfunc.errors import ShardingError, fail, short_repr
from xfunc.sharding.local_parts import Target, assemble
from xfunc.sharding.spec import NamedSharding, PartitionSpec, check_shape, resolve_sharding


def make_array_from_process_local_data(
    sharding: NamedSharding | PartitionSpec,
    local_data: object,
    global_shape: Sequence[int] | None = None,
) -> torch.Tensor:
    """A sharded tensor, to which each process contributes the part that its devices hold.

    Args:
        sharding: of the whole, or a spec on the mesh in use.
        local_data: the rows (columns, ...) of this process, in order: a tensor or an array.
        global_shape: of the whole; by default, that of all parts together. Along a dimension in
            which it equals that of `local_data`, `local_data` is the whole.

    Returns:
        A tensor on the devices, of the global shape and with this sharding.

    Nothing is sent: each process is to pass data of the same dtype and global shape.

    Raises:
        ShardingError: the shapes do not fit the sharding.
        TypeError: the data cannot be made a tensor.

    Source: ``jax.make_array_from_process_local_data``.
    """
    name = "make_array_from_process_local_data"
    given = resolve_sharding(sharding, f"the sharding of {name}")
    data = processes.on_host(name, local_data).contiguous()
    placement = placement_of(given.tiles(data.ndim))
    # The tiles that this process holds, as positions along each dimension.
    dims = (1,) * data.ndim if placement is None else placement.tiles.dims
    unit = Target(dims, data.dtype, placement=placement)
    starts = [start for start, _ in unit.boxes()]
    held = _held(starts, data.ndim)
    if global_shape is None:
        shape = tuple(
            n * k // len(places) for n, k, places in zip(data.shape, dims, held, strict=True)
        )
    else:
        shape = _shape(name, global_shape, data)
    check_shape(given, shape, "the array to make")
    part = tuple(n // k for n, k in zip(shape, dims, strict=True))
    wanted = tuple(n * len(places) for n, places in zip(part, held, strict=True))
    fits = all(n in (w, s) for n, w, s in zip(data.shape, wanted, shape, strict=True))
    if not fits or math.prod(map(len, held)) != len(set(starts)):
        fail(
            ShardingError,
            f"{name} was given {short_repr(tuple(data.shape))} of an array "
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
    result = assemble(parts, target)
    record_sharding(result, given)
    return result


def process_local_indices(
    sharding: NamedSharding | PartitionSpec, global_shape: Sequence[int]
) -> tuple[torch.Tensor, ...]:
    """The part of a sharded array that the devices of this process hold.

    ``make_array_from_process_local_data(s, x[torch.meshgrid(*indices, indexing="ij")])`` is
    ``device_put(x, s)``: a process only has to read its own part of `x`.

    Args:
        sharding: of the whole, or a spec on the mesh in use.
        global_shape: of the whole.

    Returns:
        For each dimension, the indices at which it holds something, in ascending order.

    Raises:
        ShardingError: the shape does not fit the sharding.
    """
    given = resolve_sharding(sharding, "the sharding of process_local_indices")
    shape = tuple(global_shape)
    check_shape(given, shape, "the array")
    placement = placement_of(given.tiles(len(shape)))
    target = Target(shape, torch.float32, placement=placement)
    starts = _held([start for start, _ in target.boxes()], len(shape))
    sizes = zip(starts, target.padded, strict=True)
    return tuple(
        torch.tensor([i for start in held for i in range(start, start + size)], dtype=torch.int64)
        for held, size in sizes
    )


def _shape(name: str, stated: object, data: torch.Tensor) -> tuple[int, ...]:
    """A stated global shape, if it is one for these data."""
    try:
        shape = tuple(map(operator.index, cast("Iterable[int]", stated)))
    except TypeError:
        shape = None
    if shape is None or len(shape) != data.ndim:
        fail(
            ShardingError,
            f"{name} was given {short_repr(tuple(data.shape))} of an array of the global_shape "
            f"{short_repr(stated)}",
            f"pass as global_shape the {data.ndim} sizes of the whole, as a tuple, or leave it "
            "out.",
        )
    return shape


def _held(starts: Sequence[tuple[int, ...]], ndim: int) -> list[list[int]]:
    """Where parts start, along each dimension."""
    return [sorted({s[d] for s in starts}) for d in range(ndim)]
