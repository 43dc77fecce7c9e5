"""Splash attention: the Pallas kernel that JAX has for attention on TPUs.

JAX lowers it, in `splash_kernel`; here it becomes a differentiable function. On a mesh each device
runs it on its own rows and heads. Queries, keys, values and documents are those of `attention`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import xfunc as xf

from ..parallel.sharding import Sharding
from .attention import Heads, Scores, Segments

PLATFORM = "tpu"  # On the CPU the kernel is interpreted, which is for tests.
_LANES = 128
_PLAIN = Scores()


def splash_attention(
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments = None,
    *,
    block: int = 512,
    sharding: Sharding | None = None,
    window: int | None = None,
    scores: Scores = _PLAIN,
) -> Heads:
    """Causal attention over one or several documents per row.

    Its residuals have the name ``attention`` in checkpoint policies.

    Args:
        q: queries.
        k: keys, with as many heads or a divisor of that number.
        v: values, likewise.
        segments: the document of each token; None: one document per row.
        block: queries, and keys, at a time; all of a shorter sequence.
        sharding: how the arrays are sharded; None: on one device.
        window: how many tokens each sees, including itself; None: all before it.
        scores: how scores are computed from the products of queries and keys.

    Raises:
        ValueError: the sequence is not a multiple of the block, or the block not one of 128; or
            the numbers have 64 bits.
    """
    if q.dtype is torch.float64:
        raise ValueError("splash attention has no float64: use the attention 'blockwise'")
    seq, dim = q.shape[2:]
    block = min(block, seq)
    if block % _LANES or seq % block:
        raise ValueError(
            f"splash attention of a sequence of {seq} in blocks of {block}: the block must be a "
            f"multiple of {_LANES}, and the sequence a multiple of the block. Choose such sizes, "
            "or the "
            "attention 'blockwise', which takes any."
        )
    if sharding is not None:
        k, v = (sharding.for_all_devices(x) for x in (k, v))
    segments = None if segments is None else segments.to(torch.int32)
    kernel = _Kernel(block, PLATFORM, sharding, window, scores.cap)
    return _attend(scores.scaled(q, dim), k, v, segments, kernel)


@dataclass(frozen=True)
class _Kernel:
    """What the two passes have in common, all known at tracing time."""

    block: int
    platform: str
    sharding: Sharding | None
    window: int | None
    cap: float | None

    def run(self, fun: str, outputs: int, *args: Tensor | None) -> tuple[Tensor, ...]:
        """A function of `splash_kernel`, on each device with its own rows and heads."""

        def local(*args: Tensor | None) -> tuple[Tensor, ...]:
            return xf.call_jax(
                f"{__package__}.splash_kernel:{fun}",
                *args,
                platform=self.platform,
                block=self.block,
                interpret=self.platform != "tpu",
                window=self.window or 0,
                cap=self.cap or 0.0,
            )

        if self.sharding is None:
            return local(*args)
        batch, heads = self.sharding.batch, self.sharding.heads
        specs = tuple(batch if i == _SEGMENTS else heads for i in range(len(args)))
        return xf.shard_map(local, self.sharding.mesh, specs, (heads,) * outputs)(*args)


_SEGMENTS = 3  # their place among the arguments of both passes; all others have heads


def _primal(q: Tensor, k: Tensor, v: Tensor, segments: Segments, kernel: _Kernel) -> Tensor:
    return _forward(q, k, v, segments, kernel)[0]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, kernel: _Kernel
) -> tuple[Tensor, Any]:
    found = kernel.run("forward", 2, q, k, v, segments)
    out, log_total = xf.checkpoint_name(found, "attention")
    return out, (q, k, v, segments, out, log_total)


def _backward(kernel: _Kernel, residuals: Any, ct: Tensor) -> tuple[Tensor | None, ...]:
    return *kernel.run("backward", 3, *residuals, ct), None


_attend = xf.custom_vjp(_primal, nondiff_argnums=4)
_attend.defvjp(_forward, _backward)
