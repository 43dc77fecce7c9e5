"""Programs of arrays ``[B, S]`` and ``[S, 3]``: a table of them, and random ones.

Each is called with ``x`` of float64 ``[B, S]`` and ``w`` of float64 ``[S, 3]``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import xfunc as xf

Program = Callable[..., Any]


def _attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q = x[:, None, :, None] * w[None, None]
    return F.scaled_dot_product_attention(q, q, q.sin(), is_causal=True)


def _written_out(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Attention that torch differentiates twice."""
    q = x[:, :, None] * w
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    scores = (q @ q.mT / 3**0.5).masked_fill(later, -torch.inf)
    return torch.softmax(scores, -1) @ q


def _scan(x: torch.Tensor, w: torch.Tensor) -> Any:
    return xf.scan(lambda c, a: (c * 0.5 + a, c.sin()), w.sum(0).new_zeros(x.shape[0]), x.T)


def _reversed_scan(x: torch.Tensor, w: torch.Tensor) -> Any:
    def step(c: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return c * 0.5 + a.sum(), c + a.cumsum(0)

    return xf.scan(step, w.sum(), x.T, reverse=True)


def _cond(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    # Not of a sum, which may be 0 but for rounding.
    return xf.cond(x[0, 0] > 0, lambda x: x.cumsum(1), lambda x: x.flip(1), x)


def _loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.softmax(x.T @ x / x.shape[0] ** 0.5, -1) @ w
    return F.cross_entropy(h, (w[:, 0] > 0).long()) + h[1:].var()


def _wasteful(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def body(state: Any) -> Any:
        k, y = state
        return k + 1, y.cumsum(1) / y.abs().amax()

    return xf.while_loop(lambda s: s[0] < 3, body, (torch.tensor(0), x))[1]


def _written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.new_zeros(x.shape[0] + 3, x.shape[1] + 2)
    y[1:-2, 2:] = x
    y[0, 1:-1] += w[:, 1]
    return y


EXACT: dict[str, Program] = {
    "elementwise": lambda x, w: x.sin() + w[:, 0],
    "sums": lambda x, w: (x.sum(), x.sum(0), x.mean(1), x.var(1), x.std(), w.mean(0)),
    "extremes": lambda x, w: (x.amax(0), x.amin(1), x.argmax(1), x.argmin(), x.aminmax()),
    "logic": lambda x, w: ((x > -9).all(1), (x > 1).any(), (x > 0).sum(0)),
    "softmax": lambda x, w: (torch.softmax(x, 1), torch.logsumexp(x, (0, 1)), x.log_softmax(0)),
    "products": lambda x, w: (x @ w, x @ x.T, x.T @ x, torch.einsum("bs,bt->bst", x, x).sum(2)),
    "cumulative": lambda x, w: (x.cumsum(1), x.cumprod(0), x.flip(1).cumsum(1)),
    "merged": lambda x, w: (x.reshape(-1)[1:].sum(), x.reshape(-1).cumsum(0), x.flatten().flip(0)),
    "counted": lambda x, w: torch.arange(x.numel(), dtype=x.dtype).view(x.shape) * x,
    "counted down": lambda x, w: x * torch.arange(x.shape[1] - 1, -1, -1) + torch.arange(3)[1],
    "split again": lambda x, w: x.repeat(1, 4).view(x.shape[0], 4, x.shape[1]).sum(2),
    "shifted": lambda x, w: (x[:, 1:] - x[:, :-1], x[:, -1], x[:, -2:], x[:, 1:3]),
    "rolled": lambda x, w: (x.roll(1, 1), x.flip(0), x.roll((1, 1), (0, 1))),
    "joined": lambda x, w: (torch.cat([x, x * 2], 1).sum(0), torch.cat([w, w[:1], w]).cumsum(0)),
    "stacked": lambda x, w: (torch.stack([x, x + 1], 2).reshape(x.shape[0], -1),
                             torch.stack([x, x + 1], 1).reshape(x.shape[0], -1).cumsum(1)),
    "repeated": lambda x, w: (x.repeat(2, 3).sum(1), x.repeat_interleave(2, 1)),
    "padded": lambda x, w: F.pad(x, (1, 2), value=3.0).cumsum(1),
    "triangle": lambda x, w: ((x.T @ x).tril(), (x.T @ x).triu(1).sum(0), (x.T @ x).diagonal()),
    "gathered": lambda x, w: (x.gather(1, x.argmax(1)[:, None]), w[x.argmax(1)], w[[1, 0]]),
    "scattered": lambda x, w: torch.zeros(4, 3, dtype=x.dtype).index_add(
        0, torch.arange(w.shape[0]) % 4, w
    ),
    "sorted": lambda x, w: (x.sort(1, descending=True), x.round().argsort(dim=0, stable=True),
                            x.topk(2, 1), x.reshape(-1).sort()[0], x.kthvalue(2, 1)),
    "in the middle": lambda x, w: (x.median(1), x.median(), x.quantile(0.3, 1), x.nanmedian(0),
                                   x.round().mode(1)),
    "gradient of a sort": lambda x, w: xf.grad(lambda x: (x.sort(1)[0] * w[:, 0]).square().sum())(
        x
    ),
    "gradient of running products": lambda x, w: xf.grad(
        lambda x: (x.cumprod(1) * w[:, 0]).sum()
    )(x),
    "running extremes": lambda x, w: (x.round().cummax(1), x.cummin(0)),
    "running logarithm": lambda x, w: (x.logcumsumexp(1), w.logcumsumexp(0).sum(0)),
    "resized": lambda x, w: (F.interpolate(x[:, None], scale_factor=2.0, mode="linear").cumsum(2),
                             F.avg_pool1d(w.T, 3, 1, 1, count_include_pad=False)),
    "gradient of a running maximum": lambda x, w: xf.grad(
        lambda x: (x.cummax(1)[0] ** 2 * w[:, 0]).sum()
    )(x),
    "searched": lambda x, w: (torch.searchsorted(x.sort(1)[0], x.flip(1)),
                              torch.bucketize(x, w[:, 0].sort()[0], right=True)),
    "written": lambda x, w: (x.slice_scatter(x[:, 1:-1] * 2, 1, 2), _written(x, w)),
    "windows": lambda x, w: (x.unfold(1, 3, 1).amax(2), F.pad(x, (2, 1), mode="circular"),
                             F.pad(x, (1, 2), mode="reflect")),
    "one hot": lambda x, w: (F.one_hot(x.argmax(1), 64), x.index_put((x.argmax(0) * 0,), w[:, 0])),
    "normalised": lambda x, w: (F.layer_norm(x, x.shape[1:]), x / x.norm(), F.normalize(w, dim=0)),
    "attention": _attention,
    "convolved": lambda x, w: F.conv1d(x[:, None], w[:2].sum(0)[None, None], padding=1),
    "kernel": lambda x, w: xf.grad(lambda k: (F.conv1d(x[:, None], k, padding=1) ** 2).sum())(
        w[:2].sum(0)[None, None]
    ),
    "scan": _scan,
    "scan backwards": _reversed_scan,
    "gradient of a scan": lambda x, w: xf.grad(lambda x: (_scan(x, w)[1] ** 2).sum())(x),
    "branch": _cond,
    "gradient of a branch": lambda x, w: xf.grad(lambda x: (_cond(x, w) ** 2).sum())(x),
    "loop": _wasteful,
    "vmap": lambda x, w: xf.vmap(lambda a: torch.where(a > 0, a, (a @ w).sum()))(x),
    "gradient": lambda x, w: xf.grad(_loss, argnums=(0, 1))(x, w),
    "gradient of a gradient": lambda x, w: xf.grad(
        lambda x: (xf.grad(_loss, argnums=1)(x, w) ** 2).sum()
    )(x),
    "jvp": lambda x, w: xf.jvp(lambda x: _loss(x, w), (x,), (x.cos(),)),
    "draws": lambda x, w: x * xf.random.uniform(xf.random.key(0), x.shape, dtype=x.dtype),
    "checkpointed": lambda x, w: xf.grad(
        lambda w: xf.checkpoint(lambda w: (x @ w).sin().cumsum(0))(w).sum()
    )(w),
}  # fmt: skip

# What cannot be made exact, and what is said of it.
INEXACT: dict[str, tuple[Program, str]] = {
    "transformed": (
        lambda x, w: torch.fft.rfft(x, dim=1).abs(),
        "another fft",
    ),
    "rounded": (lambda x, w: x[:, : (x.shape[1] + 1) // 2], "which is not a polynomial"),
    "power": (lambda x, w: x * 1.01 ** x.shape[1], "no ratio of sizes"),
    "another path": (lambda x, w: x.sin() if x.shape[1] % 2 else x.cos(), "another program"),
    "a size that falls": (
        lambda x, w: torch.cat([x, x.new_ones(x.shape[0], 64 - x.shape[1])], 1),
        "a dimension of size -S+64, which smaller sizes may exceed",
    ),
    "running sum of the user's": (
        lambda x, w: xf.associative_scan(torch.add, x, axis=1),
        "another program",
    ),
}

_STEPS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda x, w: x.sin(),
    lambda x, w: x + w[:, 0],
    lambda x, w: x * w.sum(1),
    lambda x, w: torch.softmax(x, 1),
    lambda x, w: torch.softmax(x, 0) + x,
    lambda x, w: x.cumsum(1) / x.shape[1],
    lambda x, w: x.flip(1),
    lambda x, w: x.roll(1, 1),
    lambda x, w: torch.cat([x[:, 1:], x[:, :1]], 1),
    lambda x, w: F.pad(x[:, :-1], (1, 0)),
    lambda x, w: (x @ w) @ w.T / 8,
    lambda x, w: x @ torch.softmax(x.T @ x, -1),
    lambda x, w: (x.T @ x).tril().sum(0) / 8 + x,
    lambda x, w: F.layer_norm(x, x.shape[1:]),
    lambda x, w: x - x.mean(1, keepdim=True),
    lambda x, w: x / (1 + x.amax(0).abs()),
    lambda x, w: x * x.std(),
    lambda x, w: x.reshape(-1).cumsum(0).view(x.shape) / x.numel(),
    lambda x, w: torch.where(x > 0, x, x.sum(0)),
    lambda x, w: x.masked_fill(torch.ones_like(x).triu().bool(), 0.5),
    lambda x, w: x.gather(1, x.argmax(1)[:, None]) + x,
    lambda x, w: x.index_select(1, torch.arange(x.shape[1]).flip(0)),
    lambda x, w: x.scatter_add(1, x.argmax(1)[:, None], x[:, :1]),
    lambda x, w: F.conv1d(x[:, None], torch.ones(1, 1, 3, dtype=x.dtype), padding=1)[:, 0],
    lambda x, w: torch.stack([x, w[:, 1].expand_as(x)], 2).reshape(x.shape[0], -1)[:, : x.shape[1]],
    lambda x, w: _written_out(x, w).mean(2),
    lambda x, w: _scan(x, w)[1].T,
    lambda x, w: _cond(x, w),
    lambda x, w: xf.vmap(lambda a: a - (a * w[:, 2]).sum())(x),
    lambda x, w: xf.grad(lambda x: ((x.sin() @ w) ** 2).mean())(x),
    lambda x, w: x.repeat(1, 2).view(x.shape[0], 2, -1).mean(1),
    lambda x, w: x * torch.arange(x.shape[1]) / x.shape[1],
    lambda x, w: x.sort(1)[0],
    lambda x, w: x.sort(0, descending=True)[0] + x,
    lambda x, w: x.slice_scatter(x[:, :-1].sin(), 1, 1),
    lambda x, w: x.cummax(1)[0],
    lambda x, w: x - x.median(1, keepdim=True)[0],
]
_ENDS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x,
    lambda x: x.sum(),
    lambda x: (x.mean(0), x.amax(1)),
    lambda x: torch.logsumexp(x, 1),
    lambda x: (x.reshape(-1)[2:].var(), x.T),
    lambda x: x[:, -1],
]


def random_program(seed: int) -> tuple[str, Program]:
    """A few steps one after the other, an end; or a gradient of them, of first or second order."""
    rng = random.Random(seed)
    steps = [rng.randrange(len(_STEPS)) for _ in range(rng.randint(2, 5))]
    end, order = rng.randrange(len(_ENDS)), rng.choice([0, 0, 1, 1, 2])

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for k in steps:
            x = _STEPS[k](x, w)
        return x

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (forward(x, w).tanh() ** 2).mean()

    def second(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (xf.grad(loss)(x, w) ** 2).sum()

    programs: list[Program] = [
        lambda x, w: _ENDS[end](forward(x, w)),
        xf.grad(loss, argnums=(0, 1)),
        xf.grad(second, argnums=(0, 1)),
    ]
    return f"steps {steps}, end {end}, order {order}", programs[order]


_AT_SMALL_SIZES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.roll(3, 1),
    lambda x: x.roll(-2, 1).roll(1, 0),
    lambda x: x.roll(3),
    lambda x: x[:, :-2],
    lambda x: x[:, 1:],
    lambda x: x[:, -3:],
    lambda x: x[:3].sum(0, keepdim=True) + x,
    lambda x: torch.cat([x, x[:, :1]], 1),
    lambda x: torch.cat([x, x * 2], 0)[1:],
    lambda x: x.squeeze(1).reshape(x.shape[0], -1),
    lambda x: x.squeeze(0).sum(0) + x,
    lambda x: x * 3 if x.shape[1] == 1 else x.sin(),
    lambda x: x.cumsum(1) if x.shape[0] < 3 else x.cumsum(0),
    lambda x: x + (100.0 if x.shape[1] < 4 else 0.0),
    lambda x: x * x[:, :1] + x[:1],
    lambda x: x.T @ x,
    lambda x: (x[:, :, None] * x[:, None]).mean(2),
    lambda x: torch.cov(x).reshape(x.shape[0], -1)[:, :1] + x,
    lambda x: torch.softmax(x, 1) + x.softmax(0),
    lambda x: x.unfold(1, 2, 1).sum(2),
    lambda x: F.avg_pool1d(x, 3, 1, 1),
    lambda x: F.conv1d(x[:, None], torch.ones(1, 1, 2, dtype=x.dtype))[:, 0],
    lambda x: F.batch_norm(x, None, None, training=True),
    lambda x: F.instance_norm(x[None])[0],
    lambda x: F.layer_norm(x, x.shape[1:]),
    lambda x: x - x.std(1, keepdim=True),
    lambda x: x.tril(1) + x.triu(-2),
    lambda x: x.reshape(-1, 1 if x.numel() < 3 else x.shape[1]),
    lambda x: x.repeat(2, 1)[::2],
    lambda x: x.diagonal()[:, None] * x[:1],
    lambda x: xf.scan(lambda c, a: (c + a, c.sin() + a), x.new_zeros(x.shape[0]), x.T)[1].T,
    lambda x: x.gather(1, x.argmax(1)[:, None]) + x,
    lambda x: F.pad(x, (2, 1), mode="reflect"),
    lambda x: F.pad(x, (1, 0), mode="circular"),
    lambda x: x.slice_scatter(x[:, 1:] * 2, 1, 0, x.shape[1] - 1),
    lambda x: x.sort(1)[0] + x.topk(2, 1)[0][:, :1],
    lambda x: x.median(1, keepdim=True)[0] - x.cummin(1)[0],
    lambda x: x.permute(1, 0)[None].expand(2, -1, -1).mean(0),
]


def program_at_small_sizes(seed: int) -> Callable[[torch.Tensor], Any]:
    """Steps that often take another path, or fail, where a dimension of ``x`` is small."""
    rng = random.Random(seed)
    steps = [rng.choice(_AT_SMALL_SIZES) for _ in range(rng.randint(1, 3))]

    def forward(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(x)
        return x

    return forward if rng.random() < 0.6 else xf.grad(lambda x: (forward(x) ** 2).sum())
