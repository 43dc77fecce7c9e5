"""Ring attention: attention over a sequence that is too long for one device.

Each device keeps the queries of its part of the sequence. Keys and values go around the ring of
devices, by `xf.ppermute` in an `xf.scan`, and each part that arrives updates a running softmax over
all keys. `xf.shard_map` runs the function on each device, and `xf.grad` goes through.

In JAX: `jax.shard_map` with `jax.lax.ppermute`.

Source: Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
Context", 2023.
"""

from typing import NamedTuple

import torch
from torch import Tensor

import xfunc as xf
from examples.gallery._devices import devices, mean_square
from xfunc import P


class Result(NamedTuple):
    """Mean squares and norms of gradients, [4]: on one device, and by the ring."""

    one_device: Tensor
    ring: Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of arrays [sequence, heads, features], on one device."""
    places = torch.arange(q.shape[0])
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    scores = torch.where(places[:, None] >= places, scores, -torch.inf)
    return torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v)


def ring_attention(q: Tensor, k: Tensor, v: Tensor, axis: str = "ring") -> Tensor:
    """The same, of the parts that this device has; to be called in a `shard_map`."""
    n, here = xf.axis_size(axis), xf.axis_index(axis)
    length, heads, features = q.shape
    around = [(i, (i + 1) % n) for i in range(n)]
    places = torch.arange(length)

    def step(state, i):
        k, v, total, weight, top = state
        source = (here - i) % n  # whose keys and values these are
        mask = (here * length + places)[:, None] >= source * length + places
        scores = torch.einsum("qhd,khd->hqk", q, k) / features**0.5
        scores = torch.where(mask, scores, -torch.inf)
        # The first part is the device's own, so there is a key that each query may see.
        new_top = torch.maximum(top, xf.stop_gradient(scores.amax(-1)))
        shrink, p = torch.exp(top - new_top), torch.exp(scores - new_top[..., None])
        total = total * shrink[..., None] + torch.einsum("hqk,khd->hqd", p, v)
        weight = weight * shrink + p.sum(-1)
        k, v = xf.ppermute((k, v), axis, around)
        return (k, v, total, weight, new_top), None

    total = torch.zeros(heads, length, features, dtype=q.dtype)
    weight = torch.zeros(heads, length, dtype=q.dtype)
    start = (k, v, total, weight, weight - torch.inf)
    (_, _, total, weight, _), _ = xf.scan(step, start, torch.arange(n))
    return (total / weight[..., None]).transpose(0, 1)


def main() -> Result:
    """Compare both, and their gradients."""
    n = devices()
    mesh = xf.make_mesh((n,), ("ring",))
    divided = xf.shard_map(ring_attention, mesh, in_specs=P("ring"), out_specs=P("ring"))
    q, k, v = xf.random.normal(xf.random.key(0), (3, 32 * n, 4, 16))
    print(f"{n} devices, each with 32 of {32 * n} places")
    one_device = mean_square("one device", attention, q, k, v)
    return Result(one_device, mean_square("ring", divided, q, k, v))


if __name__ == "__main__":
    main()
