"""`device_put` and `with_sharding_constraint`: how data, or a value in a program, is sharded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol, TypeVar, cast

import numpy as np
import torch

from xfunc import tree
from xfunc.backends import placement
from xfunc.backends.devices import to_device
from xfunc.core import ambient
from xfunc.core.avals import NUMBERS, array_of, aval_of, batched
from xfunc.core.types import AutogradContext
from xfunc.errors import ShardingError, fail, hint_for, kind_of, short_repr
from xfunc.graph import build
from xfunc.graph.graph import Graph
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.spmd.annotations import constrained
from xfunc.program.annotation import Annotation
from xfunc.program.bind import bind
from xfunc.sharding.mesh import Mesh, check_devices
from xfunc.sharding.prefix import broadcast, shardings_of
from xfunc.sharding.spec import NamedSharding, PartitionSpec, check_shape, resolve_sharding
from xfunc.sharding.vmap_specs import mapped_axes, with_axis
from xfunc.stages.checks import arrays, as_tensors, labels_in
from xfunc.torchlib import functorch, values
from xfunc.torchlib.eager import is_eager
from xfunc.torchlib.storageless import check_surroundings
from xfunc.trace import recorder, tracing
from xfunc.tree import PyTree

T = TypeVar("T")
_NAME = "with_sharding_constraint"


def with_sharding_constraint(x: T, shardings: object) -> T:
    """The same tree, sharded as given.

    Inside a program XLA chooses the sharding of each value; this fixes it, and that of the value's
    gradient. Under `vmap` a sharding is that of one example. The mapped axis is sharded over
    `vmap`'s `spmd_axis_name`; without one, XLA chooses how to shard it, as it does for dimensions
    marked ``P.UNCONSTRAINED``. Outside a traced function the data is moved.

    Args:
        x: a tree of tensors and numbers.
        shardings: a `NamedSharding`, or a `PartitionSpec` on the mesh in use, for all leaves; or a
            tree prefix of those.

    Returns:
        A tree like `x`, with tensors of the same shapes, dtypes and values.

    Raises:
        ShardingError: a sharding does not fit its array, no mesh is in use, or the call is inside a
            `shard_map`, where arrays are one device's shards.
        TreeMismatchError: `shardings` is not a tree prefix of `x`.

    Source: ``jax.lax.with_sharding_constraint``.
    """
    leaves, structure = tree.flatten(as_tensors(x))
    labels = labels_in(x, "x")
    leaves = arrays(leaves, _NAME, labels)
    given = broadcast(shardings, x, f"{_NAME}: shardings", "x")
    placed = [_checked(*one) for one in zip(leaves, given, labels, strict=True)]
    if is_eager():
        return tree.unflatten(structure, leaves)
    made = [_constrained(*one) for one in zip(leaves, placed, strict=True)]
    return tree.unflatten(structure, made)


@dataclasses.dataclass(frozen=True)
class Constraint(Annotation):
    """The primitive: one value with a sharding."""

    sharding: NamedSharding

    @property
    def graph(self) -> Graph:
        (x,) = build.parameters([array_of(self.avals[0])])
        return Graph(self.name, [x], [constrained(x, *self._tiles_and_free)])

    @property
    def _tiles_and_free(self) -> tuple[pb.OpSharding, list[int]]:
        """The sharding, and the dimensions that XLA shards as it chooses."""
        tiles = self.sharding.tiles(self.avals[0].ndim).to_proto()
        spec = enumerate(self.sharding.spec)
        return tiles, [d for d, e in spec if e is PartitionSpec.UNCONSTRAINED]

    def emit(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if tracing.current() is None:
            return super().emit(args)
        (x,), (tiles, free) = args, self._tiles_and_free
        return [recorder.constrain(x, tiles, free)]

    def batched(self, n: int) -> Constraint:
        mesh, spec = self.sharding.mesh, self.sharding.spec
        axes = mapped_axes(n, mesh, [spec], f"{_NAME} with {spec!r}")
        sharding = NamedSharding(mesh, with_axis(spec, 0, axes or PartitionSpec.UNCONSTRAINED))
        return Constraint(batched(self.avals, [0], n), sharding)


def _constrained(x: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
    if tracing.current() is None:
        is_whole = PartitionSpec.UNCONSTRAINED not in tuple(sharding.spec)
        if functorch.top_level() is None and is_whole:
            return device_put(x, sharding)
        x = to_device(x)
    if sharding.mesh.size == 1:
        return x
    return bind(Constraint((aval_of(x),), sharding), [x])[0]


def _checked(x: torch.Tensor, sharding: object, label: str) -> NamedSharding:
    what = f"{_NAME}: {label}"
    result = resolve_sharding(sharding, f"{_NAME}: the sharding of {label}")
    check_shape(result, aval_of(x).shape, what)
    if ambient.region() is not None and not is_eager():
        fail(
            ShardingError,
            f"{what} is resharded inside a shard_map, where it is one device's part",
            "shard it with the shard_map's in_specs and out_specs, or outside the shard_map.",
        )
    return result


def device_put(x: PyTree, sharding: object = None) -> PyTree:
    """The tree with every tensor on the device, or sharded over the devices of a mesh.

    Args:
        x: a tree of tensors and Python numbers, which become 0-d tensors. Tensors that are on the
            devices already are resharded; inside a traced function that is a constraint.
        sharding: a `NamedSharding`, a `PartitionSpec` where a mesh is in use, or a tree of them
            that is a prefix of `x`; None: unchanged, and for a CPU tensor replicated.

    Returns:
        A tree like `x`, with tensors of the same shapes and values.

    Raises:
        ShardingError: a sharding does not fit its array, or its mesh is not of these devices.
        TreeMismatchError: `sharding` is not a tree prefix of `x`.

    Source: ``jax.device_put``.
    """
    check_surroundings("device_put")
    leaves, structure = tree.flatten(x)
    wanted = shardings_of(sharding, x, "sharding", "x")
    return structure.unflatten([_put(*pair) for pair in zip(leaves, wanted, strict=True)])


def _put(leaf: object, wanted: tuple[NamedSharding | None, str]) -> torch.Tensor:
    sharding, path = wanted
    t = _tensor(leaf, path)
    if sharding is None:
        return to_device(t) if tracing.current() is None else recorder.to_device(t)
    sharding.check(tuple(t.shape), path)
    if tracing.current() is not None or is_eager() or functorch.levels():
        return with_sharding_constraint(t, sharding)
    if PartitionSpec.UNCONSTRAINED in tuple(sharding.spec):
        fail(
            ShardingError,
            f"device_put was given {sharding.spec!r} for {path}",
            "say how each dimension is sharded: P.UNCONSTRAINED is for constraints.",
        )
    if not isinstance(sharding.mesh, Mesh):
        check_devices(sharding.mesh)
    return _differentiable_put(t, sharding) if t.requires_grad else placement.shard(t, sharding)


def _tensor(leaf: object, path: str) -> torch.Tensor:
    if not isinstance(leaf, (torch.Tensor, np.ndarray, np.generic, *NUMBERS)):
        fail(
            TypeError,
            f"device_put was given {short_repr(leaf)} ({kind_of(leaf)}) as {path}",
            hint_for(leaf, path),
        )
    t = leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf)
    values.check_array(t, "device_put", path)
    return t


def _differentiable_put(t: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
    return cast("torch.Tensor", _Put.apply(t, sharding))


class _PutContext(AutogradContext, Protocol):
    device: torch.device


class _Put(torch.autograd.Function):
    """`placement.shard`, with a gradient that moves back to the tensor's placement."""

    @staticmethod
    def forward(ctx: _PutContext, t: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
        ctx.device = t.device
        return placement.shard(t, sharding)

    @staticmethod
    def backward(ctx: _PutContext, *cts: torch.Tensor) -> tuple[torch.Tensor, None]:
        return cts[0].to(ctx.device), None
