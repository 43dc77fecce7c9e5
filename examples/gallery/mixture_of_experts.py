"""Mixture of experts: tokens travel to the device of the expert that a router chooses.

Each device routes its own tokens. An expert takes at most `capacity` tokens from each device;
further tokens get zeros. Two `xf.all_to_all` in an `xf.shard_map` bring tokens to experts and
results back, and gradients travel the same way.

In JAX: `jax.shard_map` with `jax.lax.all_to_all`.

Source: Fedus, Zoph, Shazeer, "Switch Transformers", 2021.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import xfunc as xf
from examples.gallery._devices import devices, mean_square
from examples.gallery._experts import Params, dense, init
from xfunc import P


class Result(NamedTuple):
    """Mean squares and norms of gradients, [4], of the three ways to compute the layer."""

    dense: Tensor
    ample: Tensor
    scarce: Tensor


SPECS = Params(router=P(), up=P("expert"), down=P("expert"))


def experts(params: Params, x: Tensor, capacity: int, axis: str = "expert") -> Tensor:
    """The layer on this device's experts and tokens [tokens, features]; for a `shard_map`."""
    gates = torch.softmax(x @ params.router, -1)
    chosen = F.one_hot(gates.argmax(-1), gates.shape[-1])  # [tokens, experts]
    place = (chosen.cumsum(0) - 1) * chosen  # in the queue of the expert
    kept = chosen * (place < capacity)
    seat = F.one_hot(place.clamp(max=capacity - 1), capacity) * kept[..., None]
    seat = seat.to(x.dtype)  # [tokens, experts, capacity]
    queues = torch.einsum("td,tec->ecd", x, seat)
    # Now [experts here, capacity on every device, features].
    queues = xf.all_to_all(queues, axis, split_axis=0, concat_axis=1, tiled=True)
    hidden = torch.relu(torch.einsum("ecd,edh->ech", queues, params.up))
    out = torch.einsum("ech,ehd->ecd", hidden, params.down)
    out = xf.all_to_all(out, axis, split_axis=1, concat_axis=0, tiled=True)
    return torch.einsum("ecd,tec,te->td", out, seat, gates)


def main() -> Result:
    """Compare the layer with a dense one, with and without room for all tokens."""
    n, tokens = devices(), 16
    mesh = xf.make_mesh((n,), ("expert",))
    params = init(xf.random.key(0), 32, 64, 2 * n)
    x = xf.random.normal(xf.random.key(1), (tokens * n, 32))
    print(f"{2 * n} experts on {n} devices, each with {tokens} tokens")

    def divided(capacity: int) -> Any:
        layer = partial(experts, capacity=capacity)
        return xf.shard_map(layer, mesh, in_specs=(SPECS, P("expert")), out_specs=P("expert"))

    layers = {"dense": dense, "room for all": divided(tokens), "room for one": divided(1)}
    return Result(
        *[mean_square(name, lambda p, f=f: f(p, x), params) for name, f in layers.items()]
    )


if __name__ == "__main__":
    main()
