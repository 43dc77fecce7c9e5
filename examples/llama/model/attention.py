"""Causal attention over one or several documents a row, in blocks.

All take queries ``[batch, heads, seq, head_dim]``, keys and values with as many heads or a
divisor of that many, and the number of each token's document, or None if each row is one. A token
sees those before it and itself, in all `reach` of them, or all if that is None. `sinks` are scores
of a key that each query of a head sees besides, whose value is zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

import xfunc as xf
from xfunc import P

from ..parallel.sharding import Sharding

Heads: TypeAlias = Float[Tensor, "batch heads seq head_dim"]
Segments: TypeAlias = Int[Tensor, "batch seq"] | None
Reach: TypeAlias = int | Int[Tensor, ""] | None
Sinks: TypeAlias = Float[Tensor, " heads"] | None

_MASKED = -1e30  # Finite, because the difference of two infinities is not a number.


@dataclass(frozen=True)
class Scores:
    """What is done with the product of a query and a key.

    Attributes:
        scale: the factor it is multiplied by; None: one over the square root of the head's size.
        cap: a score s then becomes cap * tanh(s / cap); None: it stays.
    """

    scale: float | None = None
    cap: float | None = None

    def scaled(self, products: Tensor, features: int) -> Tensor:
        """The products, multiplied."""
        return products * (features**-0.5 if self.scale is None else self.scale)

    def capped(self, scores: Tensor) -> Tensor:
        """The scores, kept within the cap."""
        return scores if self.cap is None else self.cap * (scores / self.cap).tanh()


PLAIN = Scores()


def dense(
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments = None,
    *,
    reach: Reach = None,
    scores: Scores = PLAIN,
    sinks: Sinks = None,
) -> Heads:
    """Attention with all scores, ``[batch, heads, seq, seq]``, at once."""
    position = torch.arange(q.shape[-2], device=q.device)
    seen = visible(position, position[:, None], reach)[None]
    if segments is not None:
        seen = seen & (segments[:, None, :] == segments[:, :, None])
    return masked(q, k, v, seen, scores, sinks)


def visible(keys: Tensor, queries: Tensor, reach: Reach) -> Tensor:
    """Whether a query sees a key, by their positions."""
    seen = keys <= queries
    return seen if reach is None else seen & (keys > queries - reach)


def masked(
    q: Heads,
    k: Heads,
    v: Heads,
    seen: Bool[Tensor, "#batch queries keys"],
    scores: Scores = PLAIN,
    sinks: Sinks = None,
) -> Heads:
    """Attention of each query to the keys that it sees."""
    q = q.unflatten(1, (k.shape[1], -1))  # queries that share keys form a group
    made = scores.scaled(torch.einsum("bkgqd,bksd->bkgqs", q, k), q.shape[-1])
    made = wide(scores.capped(made)).masked_fill(~seen[:, None, None], _MASKED)
    if sinks is None:
        weights = made.softmax(-1).to(v.dtype)
    else:
        sink = wide(sinks).unflatten(0, (k.shape[1], -1))[:, :, None, None].expand_as(made[..., :1])
        weights = torch.cat([made, sink], -1).softmax(-1)[..., :-1].to(v.dtype)
    return torch.einsum("bkgqs,bksd->bkgqd", weights, v).flatten(1, 2)


def blockwise(
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments = None,
    *,
    block: int = 512,
    reach: Reach = None,
    scores: Scores = PLAIN,
    sinks: Sinks = None,
    sharding: Sharding | None = None,
) -> Heads:
    """The same values, with the scores of `block` queries and `block` keys at a time.

    On a mesh each device has its own rows and heads. The backward pass computes the scores again,
    from the logarithm of each query's sum.

    Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
    Partitioning", 2023.
    """
    if sharding is not None:
        k, v = (sharding.for_all_devices(x, q.shape[1]) for x in (k, v))
    seq = q.shape[2]
    block = min(block, seq)
    padding = -seq % block  # No query sees the keys added at the end.
    q, k, v = (F.pad(x, (0, 0, 0, padding)) if padding else x for x in (q, k, v))

    def blocks(x: Tensor, dim: int) -> Tensor:
        return x.unflatten(dim, (-1, block)).movedim(dim, 0)

    if segments is not None:
        segments = blocks(F.pad(segments, (0, padding)), 1)
    grouped = blocks(q, 2).unflatten(2, (k.shape[1], -1))
    reach = None if reach is None else torch.as_tensor(reach, device=q.device)
    sinks = None if sinks is None else sinks.unflatten(0, (k.shape[1], -1))
    passes = _Passes(scores, sharding)
    out = _attend(grouped, blocks(k, 2), blocks(v, 2), segments, reach, sinks, passes)
    return out.flatten(2, 3).movedim(0, 2).flatten(2, 3)[:, :, :seq]


# Queries in blocks: [blocks, batch, kv_heads, group, block, head_dim], those of a group share keys.
# Keys and values: [blocks, batch, kv_heads, block, head_dim]. A loop over blocks of queries holds
# a loop over blocks of keys, which leaves out those that no query of the block sees.


@dataclass(frozen=True)
class _Passes:
    """What the two passes have in common, all known at tracing time."""

    scores: Scores
    sharding: Sharding | None

    def run(self, local: Callable[..., Any], outputs: int, q: Tensor, *args: Any) -> Any:
        """A function of arrays in blocks, segments, a reach and sinks, on each device.

        XLA alone would gather heads: products have rows and heads as one dimension, which cannot be
        sharded like both.
        """
        if self.sharding is None:
            return local(q, *args)
        rows, heads, *_ = self.sharding.fitting(q[0], self.sharding.heads)
        by_rank = {0: P(), 2: P(heads), 3: P(None, rows)}
        specs = xf.tree.map(lambda a: by_rank.get(a.ndim, P(None, rows, heads)), (q, *args))
        out_specs = (P(None, rows, heads),) * outputs
        return xf.shard_map(local, self.sharding.mesh, specs, out_specs)(q, *args)


def _primal(*args: Any) -> Tensor:
    return _forward(*args)[0]


class Part(NamedTuple):
    """Keys and values in blocks, with their numbers in the row and their documents."""

    number: Int[Tensor, " blocks"]
    k: Tensor
    v: Tensor
    segments: Tensor | None


def begun(q: Tensor, sinks: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The state of queries that have seen no key: what they mixed, their top score, the total.

    The sinks of `kv_heads` times `group` heads count as keys with values of zero.
    """
    zero = torch.zeros_like(wide(q))
    if sinks is None:
        return zero, zero[..., 0] + _MASKED, zero[..., 0]
    return zero, zero[..., 0] + wide(sinks)[..., None], zero[..., 0] + 1


def finished(state: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The output of queries that have seen all keys, and the logarithm of each one's sum."""
    mixed, top, total = state
    return (mixed / total[..., None]).to(dtype), top + total.log()


def forward(
    i: Tensor, q: Tensor, documents: Any, state: Any, part: Part, reach: Any, kind: Scores
) -> Any:
    """The state of the queries of block `i`, continued by the keys of a part."""

    def attend(state: Any, y: Any) -> Any:
        j, k, v, others = y

        def see(state: Any) -> Any:
            mixed, top, total = state
            scores, _ = _scores(q, k, i, j, documents, others, reach, kind)
            highest = torch.maximum(top, scores.amax(-1))
            weights = (scores - highest[..., None]).exp()
            shrink = (top - highest).exp()
            new = torch.einsum("bkgqs,bksd->bkgqd", weights, wide(v))
            mixed = mixed * shrink[..., None] + new
            return mixed, highest, total * shrink + weights.sum(-1)

        return xf.cond(_near(i, j, q, reach), see, lambda state: state, state), None

    return xf.scan(attend, state, tuple(part))[0]


def backward(
    row: Any, dq: Tensor, part: Part, grads: tuple[Tensor, Tensor], reach: Any, kind: Scores
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The gradients of a block of queries, `dq`, and of the keys and values of a part, added to.

    A row has the queries' number, the queries, the gradients of their outputs, the outputs, the
    logarithms of their sums, and their documents.
    """
    i, q, ct, out, log_total, documents = row
    ct = wide(ct)
    mean = (ct * wide(out)).sum(-1, keepdim=True)  # of the gradients of a query's scores

    def attend(dq: Tensor, y: Any) -> Any:
        (j, k, v, others), grads = y

        def see(dq: Tensor, dk: Tensor, dv: Tensor) -> Any:
            scores, slope = _scores(q, k, i, j, documents, others, reach, kind)
            weights = (scores - log_total[..., None]).exp()
            dweights = torch.einsum("bkgqd,bksd->bkgqs", ct, wide(v))
            dscores = kind.scaled(weights * (dweights - mean), q.shape[-1])
            dscores = dscores if slope is None else dscores * slope
            dq = dq + torch.einsum("bkgqs,bksd->bkgqd", dscores, wide(k))
            dk = dk + torch.einsum("bkgqs,bkgqd->bksd", dscores, wide(q))
            return dq, dk, dv + torch.einsum("bkgqs,bkgqd->bksd", weights, ct)

        dq, *grads = xf.cond(_near(i, j, q, reach), see, lambda *same: same, dq, *grads)
        return dq, tuple(grads)

    return xf.scan(attend, dq, (tuple(part), grads))


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Segments,
    reach: Tensor | None,
    sinks: Tensor | None,
    passes: _Passes,
) -> tuple[Tensor, Any]:
    def local(q: Tensor, k: Tensor, v: Tensor, segments: Any, reach: Any, sinks: Any) -> Any:
        part = Part(torch.arange(q.shape[0], device=q.device), k, v, segments)

        def row(_: None, x: Any) -> Any:
            i, q, documents = x
            state = forward(i, q, documents, begun(q, sinks), part, reach, passes.scores)
            return None, finished(state, q.dtype)

        return xf.scan(row, None, (part.number, q, segments))[1]

    found = passes.run(local, 2, q, k, v, segments, reach, sinks)
    out, log_total = xf.checkpoint_name(found, "attention")
    return out, (q, k, v, segments, reach, sinks, out, log_total)


def _backward(
    passes: _Passes, residuals: Any, ct: Tensor
) -> tuple[Tensor, Tensor, Tensor, None, None, Tensor | None]:
    q, k, v, segments, reach, sinks, out, log_total = residuals

    def local(
        q: Tensor, k: Tensor, v: Tensor, segments: Any, reach: Any, *others: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        part = Part(torch.arange(q.shape[0], device=q.device), k, v, segments)

        def row(grads: Any, x: Any) -> Any:
            dq, grads = backward(x, torch.zeros_like(wide(x[1])), part, grads, reach, passes.scores)
            return grads, dq.to(q.dtype)

        zeros = torch.zeros_like(wide(k)), torch.zeros_like(wide(v))
        (dk, dv), dq = xf.scan(row, zeros, (part.number, q, *others, segments))
        return dq, dk.to(k.dtype), dv.to(v.dtype)

    dq, dk, dv = passes.run(local, 3, q, k, v, segments, reach, ct, out, log_total)
    dsinks = None
    if sinks is not None:
        weights = (wide(sinks)[..., None] - log_total).exp()
        dsinks = -(weights * (wide(ct) * wide(out)).sum(-1)).sum((0, 1, 4)).to(sinks.dtype)
    return dq, dk, dv, None, None, dsinks


_attend = xf.custom_vjp(_primal, nondiff_argnums=6)
_attend.defvjp(_forward, _backward)


def _near(i: Tensor, j: Tensor, q: Tensor, reach: Tensor | None) -> Tensor:
    """Whether a query of block `i` sees a key of block `j`."""
    if reach is None:
        return j <= i
    size = q.shape[-2]
    return (j <= i) & ((i - j) * size - (size - 1) < reach)


def _scores(
    q: Tensor,
    k: Tensor,
    i: Tensor,
    j: Tensor,
    documents: Any,
    others: Any,
    reach: Tensor | None,
    kind: Scores,
) -> tuple[Tensor, Tensor | None]:
    """Of the queries of block `i` with the keys of block `j`; and the slope of the cap there."""
    scores = kind.scaled(torch.einsum("bkgqd,bksd->bkgqs", wide(q), wide(k)), q.shape[-1])
    scores = kind.capped(scores)
    slope = None if kind.cap is None else 1 - (scores / kind.cap).square()
    place = torch.arange(q.shape[-2], device=q.device)
    seen = visible((j - i) * q.shape[-2] + place, place[:, None], reach)
    if documents is not None:
        seen = seen & (others[:, None, :] == documents[:, :, None])[:, None, None]
    return scores.masked_fill(~seen, _MASKED), slope


def wide(x: Tensor) -> Tensor:
    """At least float32: on a TPU a product of such values costs what one of bfloat16 does."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
