"""Llama in one file: a model of pure functions, trained on the text of Python's library.

python -m examples.llama.minimal                        # two minutes on two cores
CPU_NUM_DEVICES=8 python -m examples.llama.minimal      # the same, sharded over 8 devices
"""

from __future__ import annotations

import argparse
import functools
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import xfunc as xf
from xfunc import NamedSharding, P

Params: TypeAlias = dict[str, Any]  # of tensors, and a dictionary of those of the layers


class Config(NamedTuple):
    """Sizes of the model; its tokens are bytes."""

    layers: int = 4
    width: int = 128
    hidden: int = 384
    heads: int = 4
    kv_heads: int = 2
    seq: int = 128

    @property
    def head(self) -> int:
        """Features of a head."""
        return self.width // self.heads


def init(key: Int[Tensor, 2], c: Config) -> Params:
    """Random weights; those of all layers are stacked, ``[layers, in, out]``."""
    kv = c.kv_heads * c.head
    of_layer = {
        "wq": (c.width, c.width), "wk": (c.width, kv), "wv": (c.width, kv),
        "wo": (c.width, c.width), "gate": (c.width, c.hidden), "up": (c.width, c.hidden),
        "down": (c.hidden, c.width),
    }  # fmt: skip
    keys = iter(xf.random.split(key, len(of_layer) + 2))

    def matrix(*shape: int) -> Tensor:
        return xf.random.normal(next(keys), shape) * shape[-2] ** -0.5

    layers = {name: matrix(c.layers, *shape) for name, shape in of_layer.items()}
    layers |= {name: torch.ones(c.layers, c.width) for name in ("norm1", "norm2")}
    return {
        "embed": matrix(256, c.width),
        "layers": layers,
        "norm": torch.ones(c.width),
        "out": matrix(c.width, 256),
    }


def norm(x: Float[Tensor, "*batch width"], weight: Float[Tensor, " width"]) -> Tensor:
    """Divide by the root mean square."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def rotated(x: Float[Tensor, "batch heads seq head"]) -> Tensor:
    """Turn pairs of features by angles that grow with the position."""
    half = x.shape[-1] // 2
    speed = 10_000.0 ** (-torch.arange(half) / half)
    angle = torch.arange(x.shape[-2])[:, None] * speed
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def layer(
    x: Float[Tensor, "batch seq width"], w: dict[str, Tensor], c: Config
) -> tuple[Tensor, None]:
    """Attention, then a gated feed-forward part, both added to their input."""

    def heads(weight: Tensor) -> Tensor:
        return (h @ weight).unflatten(-1, (-1, c.head)).transpose(1, 2)

    h = norm(x, w["norm1"])
    q, k, v = rotated(heads(w["wq"])), rotated(heads(w["wk"])), heads(w["wv"])
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + mixed.transpose(1, 2).flatten(2) @ w["wo"]
    h = norm(x, w["norm2"])
    return x + (F.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], None


def logits(params: Params, tokens: Int[Tensor, "batch seq"], c: Config) -> Tensor:
    """The logits of the byte after each one, ``[batch, seq, 256]``."""
    x = params["embed"][tokens]
    # Only the input of each layer is kept for the backward pass.
    x, _ = xf.scan(xf.checkpoint(functools.partial(layer, c=c)), x, params["layers"])
    return norm(x, params["norm"]) @ params["out"]


def loss(params: Params, rows: Int[Tensor, "batch seq+1"], c: Config) -> Float[Tensor, ""]:
    """Mean cross entropy."""
    return F.cross_entropy(logits(params, rows[:, :-1], c).flatten(0, 1), rows[:, 1:].flatten())


def optimizer(steps: int) -> xf.optim.GradientTransformation:
    """AdamW with a warm-up, a cosine and clipped gradients."""
    rate = xf.optim.warmup_cosine_decay_schedule(0.0, 3e-3, steps // 10, steps)
    return xf.optim.chain(
        xf.optim.clip_by_global_norm(1.0), xf.optim.adamw(rate, b2=0.95, weight_decay=0.1)
    )


@functools.partial(xf.jit, static_argnames=("c", "steps"), donate_argnums=(0, 1))
def train_step(
    params: Params, state: Any, rows: Int[Tensor, "batch seq+1"], *, c: Config, steps: int
) -> tuple[Params, Any, Tensor]:
    """Weights and the optimizer's state after a step, and the loss before it."""
    value, grads = xf.value_and_grad(loss)(params, rows, c)
    updates, state = optimizer(steps).update(grads, state, params)
    return xf.optim.apply_updates(params, updates), state, value


@functools.partial(xf.jit, static_argnames="c")
def write(params: Params, begun: Int[Tensor, " n"], key: Int[Tensor, 2], *, c: Config) -> Tensor:
    """A row of bytes that goes on with `begun`: each is drawn by the logits after those before."""

    def step(i: Tensor, row: Tensor) -> Tensor:
        likely = logits(params, row[None], c)[0, i - 1] / 0.7
        token = xf.random.categorical(xf.random.fold_in(key, i), likely)
        return row.index_copy(0, i[None], token[None])

    row = F.pad(begun, (0, c.seq - len(begun)))
    return xf.fori_loop(len(begun), c.seq, step, row)


def batches(rows: int, c: Config, seed: int = 0) -> Iterator[Int[Tensor, "rows seq+1"]]:
    """Random pieces of the text of Python's library."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join(p.read_bytes() for p in sorted(folder.glob("*.py")))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    draw = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(data) - c.seq, (rows,), generator=draw)
        yield data[starts[:, None] + torch.arange(c.seq + 1)]


def main(argv: list[str] | None = None) -> None:
    """Train, and write a text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=16)
    args = parser.parse_args(argv)
    c = Config()
    # Weights are divided by their last dimension, and batches by rows: with one device, not at all.
    mesh = xf.make_mesh((xf.device_count(),), ("data",))
    params = xf.jit(init, static_argnums=1)(xf.random.key(0), c)
    last = xf.tree.map(lambda p: NamedSharding(mesh, P(*[None] * (p.ndim - 1), "data")), params)
    params = xf.device_put(params, last)
    state = xf.jit(optimizer(args.steps).init)(params)
    for step, rows in zip(range(args.steps), batches(args.rows, c), strict=False):
        given = xf.device_put(rows, NamedSharding(mesh, P("data")))
        params, state, value = train_step(params, state, given, c=c, steps=args.steps)
        if step % 20 == 0 or step == args.steps - 1:
            print(f"step {step}: loss {value.item():.3f}", flush=True)
    begun = torch.tensor(list(b"def "))
    text = write(params, begun, xf.random.key(1), c=c)
    print(bytes(xf.device_get(text).tolist()).decode(errors="replace"))


if __name__ == "__main__":
    main()
