"""`with_sharding_constraint`: say how a value inside of a program is divided."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from xfunc import tree
from xfunc.backends.torch_xla.uploads import to_device
from xfunc.core import ambient
from xfunc.core.avals import aval_of, batched
from xfunc.core.eager import is_eager
from xfunc.core.locations import user_location
from xfunc.errors import ShardingError, report
from xfunc.hlo import ComputationBuilder, Value
from xfunc.hlo.spmd.annotations import constrain
from xfunc.program.annotation import Annotation
from xfunc.program.bind import bind
from xfunc.sharding.arrays import device_put
from xfunc.sharding.mapped import mapped_axes, with_axis
from xfunc.sharding.prefix import broadcast
from xfunc.sharding.spec import NamedSharding, PartitionSpec, check_shape, resolve_sharding
from xfunc.stages.checks import arrays, as_tensors, labels_in
from xfunc.torchlib import functorch
from xfunc.trace import tracing

_NAME = "with_sharding_constraint"


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """The same tree, divided over the devices as the shardings say.

    Inside of a program XLA divides what it is not told about as it thinks best; this tells it. The
    gradient of each leaf is divided in the same way. Under `vmap` a sharding is that of one
    example. The mapped axis is divided over the axes of `vmap`'s `spmd_axis_name`; without, XLA may
    divide it as it likes, and so too dimensions of the entry ``P.UNCONSTRAINED``. Outside of a
    traced function the data is moved.

    Args:
        x: a tree of tensors and numbers.
        shardings: a `NamedSharding`, or a `PartitionSpec` on the mesh in use, for all leaves; or a
            tree prefix of those.

    Raises:
        ShardingError: a sharding does not fit its array, no mesh is in use, or the call is in a
            `shard_map`, whose function sees what one device holds.
        TreeMismatchError: `shardings` is no prefix of `x`.

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
    """The primitive: one value, divided as `sharding` says."""

    sharding: NamedSharding

    def write(self, body: ComputationBuilder, values: Sequence[Value]) -> Sequence[Value]:
        sharding, ndim = self.sharding, self.avals[0].ndim
        free = [d for d, e in enumerate(sharding.spec) if e is PartitionSpec.UNCONSTRAINED]
        return [constrain(body, values[0], sharding.tiles(ndim).to_proto(), tuple(free))]

    def batched(self, n: int) -> Constraint:
        mesh, spec = self.sharding.mesh, self.sharding.spec
        axes = mapped_axes(n, mesh, [spec], f"{_NAME} with {spec!r}")
        sharding = NamedSharding(mesh, with_axis(spec, 0, axes or PartitionSpec.UNCONSTRAINED))
        return Constraint(batched(self.avals, [0], n), sharding)


def _constrained(x: Any, sharding: NamedSharding) -> Any:
    if tracing.current() is None:
        if functorch.top_level() is None:
            return device_put(x, sharding)
        x = to_device(x)
    if sharding.mesh.size == 1:
        return x
    return bind(Constraint((aval_of(x),), sharding), [x])[0]


def _checked(x: Any, sharding: Any, label: str) -> NamedSharding:
    what = f"{_NAME}: {label}"
    found = resolve_sharding(sharding, f"{_NAME}: the sharding of {label}")
    check_shape(found, tuple(x.shape), what)
    if ambient.region() is not None and not is_eager():
        raise ShardingError(
            report(
                f"{what} is divided inside of a shard_map, where it is what one device holds",
                "divide it by in_specs and out_specs of the shard_map, or outside of it.",
                at=user_location(),
            )
        )
    return found
