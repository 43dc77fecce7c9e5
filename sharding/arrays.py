"""Arrays on a mesh: putting them there, and asking how they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xfunc import tree
from xfunc.backends.torch_xla import placement, runtime
from xfunc.backends.torch_xla.lock import lock
from xfunc.backends.torch_xla.uploads import to_device
from xfunc.core import ambient
from xfunc.core.avals import NUMBERS
from xfunc.core.eager import is_eager
from xfunc.core.locations import user_location
from xfunc.errors import ShardingError, report, shown
from xfunc.sharding.mesh import Mesh, check_devices
from xfunc.sharding.prefix import shardings_of
from xfunc.sharding.spec import NamedSharding, PartitionSpec, spec_of
from xfunc.torchlib import functorch, values
from xfunc.trace import tracing


def device_put(x: Any, sharding: Any = None) -> Any:
    """The tree with every tensor on the device, or divided among the devices of a mesh.

    Args:
        x: a tree of tensors and Python numbers, which become 0-d tensors. Tensors that are on the
            devices already are divided anew; inside a traced function that is a constraint.
        sharding: a `NamedSharding`, a `PartitionSpec` where a mesh is in use, or a tree of them
            that is a prefix of `x`; None: unchanged, and for a CPU tensor whole on each device.

    Raises:
        ShardingError: a sharding does not fit its array, or its mesh is not of these devices.
        TreeMismatchError: `sharding` is no prefix of `x`.

    Source: ``jax.device_put``.
    """
    leaves, structure = tree.flatten(x)
    wanted = shardings_of(sharding, x, "sharding", "x")
    return structure.unflatten([_put(*pair) for pair in zip(leaves, wanted, strict=True)])


def _put(leaf: Any, wanted: tuple[NamedSharding | None, str]) -> torch.Tensor:
    sharding, path = wanted
    t = _tensor(leaf, path)
    if sharding is None:
        return to_device(t)
    sharding.check(tuple(t.shape), path)
    if tracing.current() is not None or is_eager() or functorch.levels():
        from xfunc.sharding.constraint import (
            with_sharding_constraint,  # which puts, outside of programs
        )

        return with_sharding_constraint(t, sharding)
    if PartitionSpec.UNCONSTRAINED in tuple(sharding.spec):
        raise ShardingError(
            report(
                f"device_put was given {sharding.spec!r} for {path}",
                "say how each dimension is divided: P.UNCONSTRAINED is for constraints.",
                at=user_location(),
            )
        )
    if not isinstance(sharding.mesh, Mesh):
        check_devices(sharding.mesh)
    return _differentiable_put(t, sharding) if t.requires_grad else placement.divided(t, sharding)


def _tensor(leaf: Any, path: str) -> torch.Tensor:
    if not isinstance(leaf, (torch.Tensor, np.ndarray, np.generic, *NUMBERS)):
        raise TypeError(
            report(
                f"device_put was given {shown(leaf)} (a {type(leaf).__name__}) as {path}",
                "pass tensors, NumPy arrays and Python numbers.",
                at=user_location(),
            )
        )
    t = leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf)
    values.check_array(t, "device_put", path)
    return t


def _differentiable_put(t: torch.Tensor, sharding: NamedSharding) -> Any:
    return _Put.apply(t, sharding)


class _Put(torch.autograd.Function):
    """`placement.divided`, whose gradient goes back to where the tensor was."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
        ctx.device = t.device
        return placement.divided(t, sharding)

    @staticmethod
    def backward(ctx: Any, *cts: Any) -> Any:
        return cts[0].to(ctx.device), None


def sharding_of(x: torch.Tensor) -> NamedSharding | None:
    """How a tensor lies on the mesh.

    On the mesh that it, or what it was computed from, was put on; else on the mesh in use, or the
    latest that fits. None: for a CPU tensor, and where no mesh fits.

    Raises:
        ShardingError: the tensor is traced: how it is divided is chosen when the program is
            compiled.

    Source: ``jax.Array.sharding``.
    """
    trace = tracing.current()
    if not isinstance(x, torch.Tensor) or (trace is not None and trace.is_inside(x)):
        what = "a traced tensor" if isinstance(x, torch.Tensor) else shown(x)
        raise ShardingError(
            report(
                f"sharding_of was given {what}",
                "ask for the sharding of a tensor on the devices; inside a traced function, "
                "with_sharding_constraint says what it shall be.",
                at=user_location(),
            )
        )
    known = placement.known_sharding(x)
    if known is not None:
        return known
    if x.device.type == "cpu":
        return None
    noted = placement.remembered(x)
    meshes = ambient.known_meshes() if noted is None else [getattr(noted, "mesh", noted)]
    with lock:
        where = None if runtime.device_count() == 1 else placement.placements([x])[0]
    for mesh in meshes:
        spec = PartitionSpec() if where is None else spec_of(where.tiles, mesh)
        if spec is not None:
            return NamedSharding(mesh, spec)
    return None
