"""Attention by kernels that JAX lowers: its own for TPUs, splash, and cuDNN's for NVIDIA's GPUs.

On a mesh each device runs them on its own rows and heads. Queries, keys, values and documents are
those of `attention`; a token sees those within the window, including itself.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import xfunc as xf

from ..parallel.sharding import Sharding
from .attention import PLAIN, Heads, Scores, Segments

PLATFORM = "tpu"  # of splash; on the CPU it is interpreted, which is for tests
_LANES = 128
_SEGMENTS = 3  # their place among the arguments of both passes; all others have heads


@dataclass(frozen=True)
class Kernel:
    """The two passes of a kernel, and what they have in common, all known at tracing time."""

    module: str  # beside this one, with `forward` and `backward`
    platform: str  # that it is lowered for
    sharding: Sharding | None  # of the arrays; None: on one device
    settings: tuple[tuple[str, Any], ...]  # keyword arguments of both passes

    def __call__(self, q: Heads, k: Heads, v: Heads, segments: Segments) -> Heads:
        """Causal attention. Its residuals have the name ``attention`` in checkpoint policies."""
        if self.sharding is not None:
            k, v = (self.sharding.for_all_devices(x, q.shape[1]) for x in (k, v))
        return _attend(q, k, v, segments, self)

    def run(
        self, fun: str, outputs: int, q: Tensor, k: Tensor, *others: Tensor | None
    ) -> tuple[Tensor, ...]:
        """One of the passes, on each device."""
        args = (q, k, *others)

        def local(*args: Tensor | None) -> tuple[Tensor, ...]:
            name = f"{__package__}.{self.module}:{fun}"
            return xf.call_jax(name, *args, platform=self.platform, **dict(self.settings))

        if self.sharding is None:
            return local(*args)
        heads = self.sharding.fitting(k, self.sharding.heads)
        specs = tuple(xf.P(heads[0]) if i == _SEGMENTS else heads for i in range(len(args)))
        return xf.shard_map(local, self.sharding.mesh, specs, (heads,) * outputs)(*args)


def _primal(q: Tensor, k: Tensor, v: Tensor, segments: Segments, kernel: Kernel) -> Tensor:
    return _forward(q, k, v, segments, kernel)[0]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, kernel: Kernel
) -> tuple[Tensor, Any]:
    found = kernel.run("forward", 2, q, k, v, segments)
    out, statistics = xf.checkpoint_name(found, "attention")
    return out, (q, k, v, segments, out, statistics)


def _backward(kernel: Kernel, residuals: Any, ct: Tensor) -> tuple[Tensor | None, ...]:
    return *kernel.run("backward", 3, *residuals, ct), None


_attend = xf.custom_vjp(_primal, nondiff_argnums=4)
_attend.defvjp(_forward, _backward)


def splash_attention(
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments = None,
    *,
    block: int = 512,
    sharding: Sharding | None = None,
    window: int | None = None,
    scores: Scores = PLAIN,
) -> Heads:
    """Causal attention over one or several documents per row, in blocks of `block` tokens."""
    if q.dtype is torch.float64:
        raise ValueError("splash attention has no float64: use the attention 'blockwise'")
    seq, dim = q.shape[2:]
    block = min(block, seq)
    if block % _LANES or seq % block:
        raise ValueError(
            f"splash attention of a sequence of {seq} in blocks of {block}: the block must be a "
            f"multiple of {_LANES}, and the sequence a multiple of the block. Choose such sizes, "
            "or the attention 'blockwise', which takes any."
        )
    settings = ("block", block), ("window", window or 0), ("cap", scores.cap or 0.0)
    settings = *settings, ("interpret", PLATFORM != "tpu")
    kernel = Kernel("splash_kernel", PLATFORM, sharding, settings)
    segments = None if segments is None else segments.to(torch.int32)
    return kernel(scores.scaled(q, dim), k, v, segments)


def cudnn_attention(
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments = None,
    *,
    sharding: Sharding | None = None,
    window: int | None = None,
    scores: Scores = PLAIN,
) -> Heads:
    """Causal attention over one document per row, in bfloat16 or float16, without a cap."""
    wrong = None
    if segments is not None:
        wrong = "rows of several documents"
    elif scores.cap is not None:
        wrong = "scores with a cap"
    elif q.dtype not in (torch.bfloat16, torch.float16):
        wrong = f"{q.dtype}"
    elif q.shape[-1] % 8 or q.shape[-1] > 256:
        wrong = f"heads of {q.shape[-1]} features (multiples of 8 up to 256)"
    if wrong is not None:
        raise ValueError(f"cuDNN has no attention for {wrong}: use the attention 'blockwise'")
    scale = q.shape[-1] ** -0.5 if scores.scale is None else scores.scale
    settings = ("window", window or 0), ("scale", scale)
    return Kernel("cudnn_kernel", "cuda", sharding, settings)(q, k, v, None)
