"""Scan: host time and transfers of one training step, from the call to its return.

The step is loss, gradients and SGD of a 12-layer decoder, with the weights of the layers stacked
and the same layer function in every case:

xfunc: one jitted step, parameters donated, with `xf.scan`.
torch_xla scan: `torch_xla.experimental.scan.scan`, with ``is_fn_pure=True`` and without.
for loop: the layers one after the other, on lazy tensors; our transfers may not exceed its own.

The peers end with ``torch_xla.sync()``. The device is waited for outside the timer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch_xla  # pyright: ignore[reportMissingImports]
from torch_xla.debug import metrics  # pyright: ignore[reportMissingImports]
from torch_xla.experimental.scan import (  # pyright: ignore[reportMissingImports]
    scan as torch_xla_scan,
)

import xfunc as xf
from benchmarks import llama
from benchmarks.timing import Contender, Row, race, table, wait

C = llama.Config()
LEARNING_RATE = 1e-3

Layers = dict[str, torch.Tensor]
Decoder = Callable[[torch.Tensor, Layers], torch.Tensor]


def layer(x: torch.Tensor, w: Layers) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of a scan. torch_xla's scan can't close over tensors and must return one."""
    x = llama.block(x, w, *llama.rope(C, x.device), C)
    return x, x.mean()


def for_loop(x: torch.Tensor, layers: Layers) -> torch.Tensor:
    """The decoder without a scan."""
    for i in range(C.layers):
        x, _ = layer(x, {k: w[i] for k, w in layers.items()})
    return x


def loss_of(decoder: Decoder, layers: Layers, x: torch.Tensor) -> torch.Tensor:
    """Some loss of the last layer's output."""
    return decoder(x, layers).square().mean()


def weights() -> Layers:
    """Random weights on the device, stacked."""
    torch.manual_seed(0)
    shapes = {k: (C.layers, *s) for k, s in llama.layer_shapes(C).items()}
    return {k: xf.device_put(torch.randn(s) * s[-1] ** -0.5) for k, s in shapes.items()}


def our_step(layers: Layers, x: torch.Tensor) -> tuple[torch.Tensor, Layers]:
    """One step of SGD."""
    loss = functools.partial(loss_of, lambda x, layers: xf.scan(layer, x, layers)[0])
    value, grads = xf.value_and_grad(loss)(layers, x)
    return value, xf.tree.map(lambda p, g: p - LEARNING_RATE * g, layers, grads)


class Ours:
    """The jitted step; `settle` releases the donated weights.

    To free a donated buffer while the program that took it over runs makes torch_xla wait, on the
    CPU, for that program. That is not part of the call, and is done when the device has finished.
    """

    def __init__(self, x: torch.Tensor):
        self.layers, self.x = weights(), x
        self.step = xf.jit(our_step, donate_argnums=0)
        self.updated = self.layers

    def __call__(self) -> torch.Tensor:
        value, self.updated = self.step(self.layers, self.x)
        return value

    def settle(self) -> None:
        """Take over the new weights."""
        wait()
        self.layers = self.updated


class Lazy:
    """The step on lazy tensors, as torch_xla's users write it."""

    def __init__(self, decoder: Decoder, x: torch.Tensor):
        self.layers, self.x, self.decoder = weights(), x, decoder
        for w in self.layers.values():
            w.requires_grad_()
        self.settle = wait

    def __call__(self) -> torch.Tensor:
        value = loss_of(self.decoder, self.layers, self.x)
        value.backward()
        with torch.no_grad():
            for w in self.layers.values():
                assert w.grad is not None
                w.sub_(w.grad, alpha=LEARNING_RATE)
                w.grad = None
        torch_xla.sync()
        return value.detach()


def transfers(step: Ours | Lazy) -> float:
    """Host-to-device transfers per step."""
    steps = 5
    metrics.clear_all()
    for _ in range(steps):
        step()
        step.settle()
    data = metrics.metric_data("TransferToDeviceTime")
    return data[0] / steps if data else 0.0


def main() -> None:
    """Print the table."""
    x = xf.device_put(torch.randn(C.batch, C.seq, C.hidden))
    steps: dict[str, Ours | Lazy] = {
        "ours": Ours(x),
        "pure": Lazy(lambda x, layers: torch_xla_scan(layer, x, layers, is_fn_pure=True)[0], x),
        "scan": Lazy(lambda x, layers: torch_xla_scan(layer, x, layers)[0], x),
        "loop": Lazy(for_loop, x),
    }
    first = torch.stack([s().cpu() for s in steps.values()])
    torch.testing.assert_close(first, first[:1].expand_as(first), rtol=1e-3, atol=1e-3)
    for s in steps.values():
        s.settle()
    best = race({n: Contender(s, s.settle) for n, s in steps.items()}, 20, budget=60)
    moved = {n: transfers(steps[n]) for n in ("ours", "loop")}
    ours = best["ours"]
    rows = [
        Row("torch_xla scan, is_fn_pure=True", ours, best["pure"], 15, times_less=True),
        Row("torch_xla scan", ours, best["scan"], 50, times_less=True),
        Row("for loop, lazy tensors", ours, best["loop"], 1, times_less=True),
        Row("for loop, host-to-device transfers", moved["ours"], moved["loop"], 1, unit="per step"),
    ]
    print(table(f"scan: one training step of {C.layers} layers, host time", rows))
