"""Arrays on a mesh: putting them there, and asking how they lie."""

from __future__ import annotations

from typing import Any

import torch

from xfunc import ambient, placement, runtime, tracing, tree
from xfunc.errors import ShardingError, report, shown
from xfunc.locations import user_location

from .mesh import Mesh, check_devices
from .prefix import shardings_of
from .spec import NamedSharding, PartitionSpec, spec_of


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
    t = leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf)
    if sharding is None:
        return runtime.to_device(t)
    sharding.check(tuple(t.shape), path)
    if tracing.current() is not None:
        from .constraint import with_sharding_constraint

        return with_sharding_constraint(t, sharding)
    if not isinstance(sharding.mesh, Mesh):
        check_devices(sharding.mesh)
    return _differentiable_put(t, sharding) if t.requires_grad else placement.divided(t, sharding)


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
    one that was last. None: for a CPU tensor; if no mesh was ever used; or if the tensor is divided
    in a way that no spec on the mesh says.

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
    noted = placement.remembered(x)
    mesh = ambient.latest_mesh() if noted is None else getattr(noted, "mesh", noted)
    if mesh is None or x.device.type == "cpu":
        return None
    with runtime.lock:
        where = None if runtime.device_count() == 1 else placement.placements([x])[0]
    spec = PartitionSpec() if where is None else spec_of(where.tiles, mesh)
    return None if spec is None else NamedSharding(mesh, spec)
