"""Specs of batches: the position of a `vmap`'s mapped axis, and the mesh axes that shard it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xfunc.errors import ShardingError, fail
from xfunc.sharding.mesh import AbstractMesh
from xfunc.sharding.spec import Entry, PartitionSpec
from xfunc.torchlib.batching import axes_of


def with_axis(spec: PartitionSpec, d: int, entry: Entry | tuple[str, ...] = None) -> PartitionSpec:
    """The spec of an array with one more dimension at `d`, sharded over `entry`."""
    entries = [*spec, *(None for _ in range(d - len(spec)))]
    return PartitionSpec(*entries[:d], entry, *entries[d:])


def mapped_axes(
    n: int,
    mesh: AbstractMesh,
    specs: Sequence[PartitionSpec],
    what: str,
    among: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """The axes that shard a batch.

    Args:
        n: the number of examples.
        mesh: the mesh of the specs.
        specs: of one example.
        what: the owner of the specs, in a message.
        among: the axes to consider; None: all.

    Raises:
        ShardingError: an axis is not in this mesh, already shards a single example, or `n` is not a
            multiple of its size.
    """
    asked = axes_of(n)
    axes = tuple(a for a in asked if among is None or a in among)
    taken = {name for spec in specs for names in spec.axes for name in names}
    size = math.prod(mesh.shape.get(a, 1) for a in axes)
    for a in asked:
        if a not in mesh.shape:
            problem = f"{mesh!r} has no such axis"
            hint = f"its axes are {', '.join(map(repr, mesh.axis_names))}."
        elif a not in axes:
            continue
        elif a in taken:
            problem = f"the axis {a!r} divides single examples there"
            hint = "let each axis divide the batch, or the examples."
        elif n % size:
            problem = f"there are {n} examples, no multiple of {size}"
            hint = "pad the batch, or shard it over fewer devices."
        else:
            continue
        fail(
            ShardingError,
            f"{what} is in a vmap with spmd_axis_name={_shown(asked)}, and {problem}",
            hint,
        )
    return axes


def _shown(axes: tuple[str, ...]) -> str:
    return repr(axes[0] if len(axes) == 1 else axes)
