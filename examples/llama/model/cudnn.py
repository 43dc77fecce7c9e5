"""cuDNN's attention: the fused kernels of NVIDIA's library, which XLA calls on its GPUs.

Queries, keys and values are those of `attention`. On a mesh each device runs the kernels on its own
rows and heads. Programs with them run on such a GPU only, and are exported for it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import xfunc as xf

from ..parallel.sharding import Sharding
from .attention import Heads, Scores, Segments

_PLAIN = Scores()


def cudnn_attention(
    q: Heads,
    k: Heads,
    v: Heads,
    segments: Segments = None,
    *,
    sharding: Sharding | None = None,
    window: int | None = None,
    scores: Scores = _PLAIN,
) -> Heads:
    """Causal attention over one document per row, in bfloat16 or float16.

    Its residuals have the name ``attention`` in checkpoint policies.

    Args:
        q: queries.
        k: keys, with as many heads or a divisor of that number.
        v: values, likewise.
        segments: must be None: the kernels know one document per row.
        sharding: how the arrays are sharded; None: on one device.
        window: how many tokens each sees, including itself; None: all before it.
        scores: how scores are computed from the products of queries and keys; without a cap.

    Raises:
        ValueError: there is no kernel for this.
    """
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
    if sharding is not None:
        k, v = (sharding.for_all_devices(x) for x in (k, v))
    scale = q.shape[-1] ** -0.5 if scores.scale is None else scores.scale
    return _attend(q, k, v, _Kernel(sharding, window or 0, scale))


@dataclass(frozen=True)
class _Kernel:
    """What the two passes have in common, all known at tracing time."""

    sharding: Sharding | None
    window: int
    scale: float

    def run(self, fun: str, outputs: int, *args: Tensor) -> tuple[Tensor, ...]:
        """A function of `cudnn_kernel`, on each device with its own rows and heads."""

        def local(*args: Tensor) -> tuple[Tensor, ...]:
            return xf.call_jax(
                f"{__package__}.cudnn_kernel:{fun}",
                *args,
                platform="cuda",
                window=self.window,
                scale=self.scale,
            )

        if self.sharding is None:
            return local(*args)
        heads = self.sharding.heads
        specs = (heads,) * len(args)
        return xf.shard_map(local, self.sharding.mesh, specs, (heads,) * outputs)(*args)


def _primal(q: Tensor, k: Tensor, v: Tensor, kernel: _Kernel) -> Tensor:
    return _forward(q, k, v, kernel)[0]


def _forward(q: Tensor, k: Tensor, v: Tensor, kernel: _Kernel) -> tuple[Tensor, Any]:
    out, statistics = xf.checkpoint_name(kernel.run("forward", 2, q, k, v), "attention")
    return out, (q, k, v, out, statistics)


def _backward(kernel: _Kernel, residuals: Any, ct: Tensor) -> tuple[Tensor, ...]:
    return kernel.run("backward", 3, *residuals, ct)


_attend = xf.custom_vjp(_primal, nondiff_argnums=3)
_attend.defvjp(_forward, _backward)
