"""All shardings of the model in one place.

``data`` shards only the batch; ``fsdp`` shards the batch and the weights; ``tensor`` shards each
matrix product; ``expert`` shards the batch, experts, and other weights like ``fsdp``; ``context``
shards the tokens of each row, and weights like ``fsdp``. XLA derives the communication from that,
but for experts and attention.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import xfunc as xf
from xfunc import NamedSharding, P

# NOTE [axes that shard a weight come first among those that shard a batch]: with a batch over
# ("data", "fsdp"), weights over "fsdp" and "tensor", and each of these axes larger than 1, XLA's
# partitioner computes a wrong product, without an error (docs/sharding.md, and
# tests/sharding/test_constraint.py).
AXES = ("data", "fsdp", "tensor", "expert", "context")
_ROWS = ("fsdp", "expert", "data")  # the axes that shard a batch: see the note
_FSDP = ("fsdp", "expert", "context")  # those that shard weights, gathered where they are used


@dataclass(frozen=True)
class Sharding:
    """A mesh with the axes `AXES`, and the sharding of each kind of array.

    The stacked weights are ``[layers, out, in]``. Maps into attention and the feed-forward part are
    sharded over ``tensor`` by their outputs, maps out of them by their inputs, so that the values
    in between are never communicated.
    """

    mesh: xf.AbstractMesh
    batch: P = P(_ROWS)
    tokens: P = P(_ROWS, "context")  # [batch, seq, ...], of each token
    # [batch, seq, hidden], as they leave the embedding, whose gradient so is summed in columns. If
    # rows were sharded over the columns' axes, Shardy would sum all columns on each device.
    lookups: P = P(("tensor", "data"), None, _FSDP)
    # From there XLA moves one axis from columns to rows at a time: two at once it gathers.
    of_context: P = P(("tensor", "data"), "context", ("fsdp", "expert"))
    activations: P = P(_ROWS, "context", "tensor")  # [batch, seq, hidden], between the layers
    heads: P = P(_ROWS, "tensor", "context")  # [batch, heads, seq, head_dim]
    features: P = P(_ROWS, "context", "tensor")  # [batch, seq, features], in the feed-forward part
    logits: P = P(_ROWS, "context", "tensor")
    embed: P = P("tensor", _FSDP)  # [vocab, hidden]
    into: P = P(None, "tensor", _FSDP)
    out_of: P = P(None, _FSDP, "tensor")
    into_experts: P = P(None, "expert", "tensor", ("fsdp", "context"))
    out_of_experts: P = P(None, "expert", ("fsdp", "context"), "tensor")
    expert_features: P = P(None, "expert", "tensor")  # biases within experts
    expert_biases: P = P(None, "expert", ("fsdp", "context"))  # biases of their outputs
    router: P = P(None, None, _FSDP)  # [layers, experts, hidden]
    layer_norm: P = P(None, _FSDP)
    layer_bias: P = P(None, "tensor")  # of maps into attention and the feed-forward part
    whole: P = P()
    norm: P = P(_FSDP)

    @classmethod
    def of(cls, axes: Mapping[str, int], *, abstract: bool = False) -> "Sharding":
        """On all devices or, if `abstract`, on devices that need not be present."""
        shape = tuple(axes.get(axis, 1) for axis in AXES)
        return cls(xf.AbstractMesh(shape, AXES) if abstract else xf.make_mesh(shape, AXES))

    def params(self, weights: Any) -> Any:
        """The tree of shardings of `model.init`, from the tree of `model.weights`."""
        return xf.tree.map(
            lambda w: self.on_mesh(self._dividing(w.shape, getattr(self, w.lies))), weights
        )

    def _dividing(self, shape: tuple[int, ...], spec: P) -> P:
        """A spec of a weight, or one that shards other dimensions where sizes are no multiples.

        So a vocabulary of any size lies on all devices of the axis ``tensor``, by its features.
        """
        entries = [_axes(entry) for entry in spec] + [()] * (len(shape) - len(spec))
        left: list[str] = []
        for i, size in enumerate(shape):
            if size % _size(self.mesh, entries[i]):
                left += entries[i]
                entries[i] = ()
        if not left:
            return spec
        for axis in left:
            for i in reversed(range(len(shape))):
                if shape[i] % _size(self.mesh, (*entries[i], axis)) == 0:
                    entries[i] += (axis,)
                    break
        return P(*(e or None for e in entries))

    def on_mesh(self, spec: P) -> NamedSharding:
        """A spec of this object with its mesh."""
        return NamedSharding(self.mesh, spec)

    def constrain(self, x: Tensor, spec: P) -> Tensor:
        """The same values, constrained to a spec of this object.

        A dimension that is not a multiple of its axes, such as a few heads of keys, is not sharded.
        """
        return xf.with_sharding_constraint(x, self.on_mesh(self.fitting(x, spec)))

    def fitting(self, x: Tensor, spec: P) -> P:
        """The part of a spec whose axes divide the dimensions of `x`."""
        return fitting(self.mesh, x.shape, spec)

    def chunks(self, seq: int) -> list[int]:
        """The chunks of a row in the order in which the devices along ``context`` have them.

        Of twice as many chunks as there are devices, each has one from the front and one from the
        back: in causal attention these take as long as any other two. One device has one chunk.
        """
        n = self.mesh.shape["context"]
        if n == 1:
            return [0]
        if seq % (2 * n):
            raise ValueError(
                f"rows of {seq} tokens cannot be divided: mesh.context is {n}, so make data.seq a "
                f"multiple of {2 * n}"
            )
        return [chunk for k in range(n) for chunk in (k, 2 * n - 1 - k)]

    def for_all_devices(self, x: Tensor, heads: int) -> Tensor:
        """Keys or values ``[batch, heads, ...]`` with heads for each device along ``tensor``.

        Those that share one each get a copy of it; unless they cannot share the `heads` of queries.
        """
        all_heads = math.lcm(x.shape[1], self.mesh.shape["tensor"])
        n = 1 if heads % all_heads else all_heads // x.shape[1]
        return x if n == 1 else x[:, :, None].expand(-1, -1, n, -1, -1).flatten(1, 2)


def fitting(mesh: xf.AbstractMesh, shape: Sequence[int], spec: Iterable[Any]) -> P:
    """The part of a spec whose axes divide the dimensions of a shape."""
    pairs = zip(shape, spec, strict=False)
    return P(*(entry if size % _size(mesh, entry) == 0 else None for size, entry in pairs))


def _size(mesh: xf.AbstractMesh, entry: Any) -> int:
    return math.prod(mesh.shape[axis] for axis in _axes(entry))


def _axes(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry or ())
