"""`sharding_of`: the sharding of an array."""

from __future__ import annotations

from typing import cast

import torch

from xfunc.backends import placement
from xfunc.backends.active import runtime
from xfunc.backends.lock import lock
from xfunc.core import ambient
from xfunc.errors import ShardingError, fail, short_repr
from xfunc.sharding.spec import NamedSharding, PartitionSpec, spec_of
from xfunc.trace import tracing


def sharding_of(x: torch.Tensor) -> NamedSharding | None:
    """The sharding of a tensor.

    It refers to the mesh that the tensor, or its inputs, were put on; otherwise to the mesh in use,
    or the latest one that fits. None for a CPU tensor, or if no mesh fits.

    Args:
        x: a tensor.

    Returns:
        A `NamedSharding`, or None.

    Raises:
        ShardingError: the tensor is traced, or a function that is being traced holds it: its
            sharding is chosen when the program is compiled.

    Source: ``jax.Array.sharding``.
    """
    trace = tracing.current()
    if not isinstance(x, torch.Tensor) or trace is not None:
        what = short_repr(x)
        if isinstance(x, torch.Tensor):
            inside = trace is not None and trace.is_inside(x)
            what = f"a {'traced tensor' if inside else 'tensor that a traced function holds'}"
        fail(
            ShardingError,
            f"sharding_of was given {what}",
            "ask for the sharding of a tensor on the devices, outside of traced functions; inside, "
            "use with_sharding_constraint to set it.",
        )
    known = placement.known_sharding(x)
    if known is not None:
        return cast("NamedSharding", known)  # They are the only shardings that users have.
    if not placement.is_on_devices(x):
        return None
    noted = placement.recorded_sharding(x)
    meshes = ambient.known_meshes() if noted is None else [getattr(noted, "mesh", noted)]
    with lock:
        where = None if runtime().device_count() == 1 else runtime().placements_of([x])[0]
    for mesh in meshes:
        spec = PartitionSpec() if where is None else spec_of(where.tiles, mesh)
        if spec is not None:
            return NamedSharding(mesh, spec)
    return None
