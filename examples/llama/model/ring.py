"""Attention over rows that are too long for one device: each has a part of every row.

Keys and values go around the devices of a mesh's axis ``context``. Each time a part comes by, the
attention of a device's own queries is continued by it, in blocks, as in `attention.blockwise`. In
the backward pass the gradients of keys and values go around with them.

Source: Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite
Context", 2023.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import xfunc as xf
from xfunc import P

from ..parallel.sharding import Sharding
from . import attention
from .attention import PLAIN, Heads, Part, Reach, Scores, Segments, wide

AXIS = "context"


def ring(
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments = None,
    *,
    sharding: Sharding,
    block: int = 512,
    reach: Reach = None,
    scores: Scores = PLAIN,
) -> Heads:
    """Causal attention over one or several documents per row, of tokens in `Sharding.chunks`.

    Its residuals have the name ``attention`` in checkpoint policies. Arguments are those of
    `attention.blockwise`, with at most `block` queries, and keys, at a time.
    """
    k, v = (sharding.for_all_devices(x, q.shape[1]) for x in (k, v))
    chunk = q.shape[2] // (2 * sharding.mesh.shape[AXIS])
    size = max(n for n in range(1, min(block, chunk) + 1) if chunk % n == 0)
    reach = None if reach is None else torch.as_tensor(reach, device=q.device)
    return _attend(q, k, v, segments, reach, _Ring(sharding, size, chunk // size, scores))


@dataclass(frozen=True)
class _Ring:
    """What the two passes have in common, all known at tracing time."""

    sharding: Sharding
    block: int  # queries, and keys, in one
    blocks: int  # of each of the two chunks of a row that a device has
    kind: Scores

    def run(self, local: Callable[..., Any], outputs: int, like: Heads, *args: Any) -> Any:
        """A function on each device, with arrays of heads, like keys, that are cut into blocks.

        It takes the number of each block in its row, and the arguments: arrays of heads; segments,
        which have two dimensions; and a reach, which has none.
        """
        heads = self.sharding.fitting(like, self.sharding.heads)
        by_rank = {0: P(), 2: P(heads[0], AXIS)}
        specs = xf.tree.map(lambda a: by_rank.get(a.ndim, heads), args)

        def cut(*args: Any) -> Any:
            here, last = xf.axis_index(AXIS), 2 * xf.axis_size(AXIS) - 1
            within = torch.arange(self.blocks, device=like.device)
            number = torch.stack([here, last - here])[:, None] * self.blocks + within
            found = local(number.flatten(), *xf.tree.map(self._cut, args))
            return tuple(x.movedim(0, 2).flatten(2, 3) for x in found)

        return xf.shard_map(cut, self.sharding.mesh, specs, (heads,) * outputs)(*args)

    def _cut(self, x: Tensor) -> Tensor:
        """Blocks in front."""
        if not x.ndim:
            return x
        dim = 1 if x.ndim == 2 else 2
        return x.unflatten(dim, (-1, self.block)).movedim(dim, 0)

    def around(self, step: Callable[[Any, Part], tuple[Any, Any]], state: Any, part: Any) -> Any:
        """Let parts go around; `step` takes the state and a part, and returns both."""
        n = self.sharding.mesh.shape[AXIS]
        next_one = [(i, (i + 1) % n) for i in range(n)]

        def one(carry: Any, _: None) -> tuple[Any, None]:
            state, part = step(*carry)
            return (state, xf.ppermute(part, AXIS, next_one)), None

        return xf.scan(one, (state, part), None, length=n)[0]


def _primal(q: Tensor, k: Tensor, v: Tensor, segments: Segments, reach: Any, ring: _Ring) -> Tensor:
    return _forward(q, k, v, segments, reach, ring)[0]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, reach: Any, ring: _Ring
) -> tuple[Tensor, Any]:
    def local(number: Tensor, q: Tensor, k: Tensor, v: Tensor, segments: Any, reach: Any) -> Any:
        q = q.unflatten(2, (k.shape[2], -1))

        def step(states: Any, part: Part) -> tuple[Any, Part]:
            def row(_: None, x: Any) -> tuple[None, Any]:
                i, q, documents, state = x
                return None, attention.forward(i, q, documents, state, part, reach, ring.kind)

            return xf.scan(row, None, (number, q, segments, states))[1], part

        states, _ = ring.around(step, attention.begun(q), Part(number, k, v, segments))
        out, log_total = attention.finished(states, q.dtype)
        return out.flatten(2, 3), log_total.flatten(2, 3)[..., None]

    found = ring.run(local, 2, k, q, k, v, segments, reach)
    out, log_total = xf.checkpoint_name(found, "attention")
    return out, (q, k, v, segments, reach, out, log_total)


def _backward(ring: _Ring, residuals: Any, ct: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
    def local(
        number: Tensor, q: Tensor, k: Tensor, v: Tensor, segments: Any, reach: Any, *others: Tensor
    ) -> Any:
        q, out, log_total, ct = (x.unflatten(2, (k.shape[2], -1)) for x in (q, *others))
        rows = number, q, ct, out, log_total[..., 0], segments

        def step(dq: Any, moving: Any) -> tuple[Any, Any]:
            part, grads = moving

            def row(grads: Any, x: Any) -> tuple[Any, Any]:
                dq, *row = x
                dq, grads = attention.backward(row, dq, part, grads, reach, ring.kind)
                return grads, dq

            grads, dq = xf.scan(row, grads, (dq, *rows))
            return dq, (part, grads)

        zeros = [torch.zeros_like(wide(x)) for x in (q, k, v)]
        part = Part(number, k, v, segments)
        dq, (_, grads) = ring.around(step, zeros[0], (part, tuple(zeros[1:])))
        return dq.flatten(2, 3).to(q.dtype), grads[0].to(k.dtype), grads[1].to(v.dtype)

    dq, dk, dv = ring.run(local, 3, residuals[1], *residuals, ct)
    return dq, dk, dv, None, None


_attend = xf.custom_vjp(_primal, nondiff_argnums=5)
_attend.defvjp(_forward, _backward)
