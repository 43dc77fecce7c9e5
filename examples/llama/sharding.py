"""How the model lies on a mesh, in one place.

The mesh has three axes, of which any may be 1. Over ``data`` the batch is divided and the weights
are not (data parallel); over ``fsdp`` the batch and the weights are (fully sharded data parallel);
over ``tensor`` each matrix product is (tensor parallel). What moves between the devices follows
from that; XLA writes it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import xfunc as xf
from xfunc import NamedSharding, P

AXES = ("data", "fsdp", "tensor")
_ROWS = ("data", "fsdp")  # the axes that divide a batch


@dataclass(frozen=True)
class Sharding:
    """A mesh of the axes `AXES`, and how each kind of array lies on it.

    The stacked weights are ``[layers, out, in]``. Maps into attention and the feed-forward part
    are divided over ``tensor`` by what they make, maps out of them by what they take, so that
    what lies between never moves.
    """

    mesh: xf.AbstractMesh
    batch: P = P(_ROWS)
    activations: P = P(_ROWS, None, "tensor")  # [batch, seq, hidden], between the layers
    heads: P = P(_ROWS, "tensor")  # [batch, heads, seq, head_dim]
    features: P = P(_ROWS, None, "tensor")  # [batch, seq, features], within the feed-forward part
    logits: P = P(_ROWS, None, "tensor")
    embed: P = P("tensor", "fsdp")  # [vocab, hidden]
    into: P = P(None, "tensor", "fsdp")
    out_of: P = P(None, "fsdp", "tensor")
    layer_norm: P = P(None, "fsdp")
    norm: P = P("fsdp")

    @classmethod
    def of(cls, axes: Mapping[str, int], *, abstract: bool = False) -> "Sharding":
        """On all devices there are, or, if `abstract`, on devices that need not be there."""
        shape = tuple(axes.get(axis, 1) for axis in AXES)
        return cls(xf.AbstractMesh(shape, AXES) if abstract else xf.make_mesh(shape, AXES))

    def params(self, *, tied: bool) -> dict[str, Any]:
        """The tree of shardings of `model.init`."""
        specs = {
            "embed": self.embed,
            "layers": {
                "attn_norm": self.layer_norm,
                "wq": self.into,
                "wk": self.into,
                "wv": self.into,
                "wo": self.out_of,
                "mlp_norm": self.layer_norm,
                "w_gate": self.into,
                "w_up": self.into,
                "w_down": self.out_of,
            },
            "norm": self.norm,
        }
        if not tied:
            specs["head"] = self.embed
        return xf.tree.map(self.on_mesh, specs)

    def on_mesh(self, spec: P) -> NamedSharding:
        """A spec of this object with its mesh."""
        return NamedSharding(self.mesh, spec)

    def constrain(self, x: Tensor, spec: P) -> Tensor:
        """The same values, to lie as a spec of this object says.

        A dimension that its axes do not divide, such as few heads of keys, is left whole.
        """
        fits = [e if d % self._parts(e) == 0 else None for d, e in zip(x.shape, spec, strict=False)]
        return xf.with_sharding_constraint(x, self.on_mesh(P(*fits)))

    def _parts(self, entry: Any) -> int:
        axes = (entry,) if isinstance(entry, str) else entry or ()
        return math.prod(self.mesh.shape[axis] for axis in axes)


def parse_mesh(text: str) -> dict[str, int]:
    """Sizes of axes from a text such as ``fsdp=64,tensor=4``; an axis left out has size 1."""
    sizes: dict[str, int] = dict.fromkeys(AXES, 1)
    for part in filter(None, text.split(",")):
        axis, _, size = part.partition("=")
        if axis.strip() not in sizes or not size.strip().isdecimal() or int(size) < 1:
            raise ValueError(f"cannot read {part!r} as an axis: write {'=N,'.join(AXES)}=N")
        sizes[axis.strip()] = int(size)
    return sizes
