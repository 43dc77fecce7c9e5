"""Attention by kernels that JAX lowers, as differentiable functions.

On a mesh each device runs them on its own rows and heads. Queries, keys, values and documents are
those of `attention`.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

import xfunc as xf

from ..parallel.sharding import Sharding
from .attention import Heads, Segments

_SEGMENTS = 3  # their place among the arguments of both passes; all others have heads


@dataclass(frozen=True)
class Kernel:
    """The two passes of a kernel, and what they have in common, all known at tracing time.

    Attributes:
        module: the module beside this one that has `forward` and `backward`.
        platform: the kind of device that it is lowered for.
        sharding: how the arrays are sharded; None: on one device.
        settings: keyword arguments of both passes.
    """

    module: str
    platform: str
    sharding: Sharding | None
    settings: tuple[tuple[str, Any], ...]

    def __call__(self, q: Heads, k: Heads, v: Heads, segments: Segments) -> Heads:
        """Causal attention. Its residuals have the name ``attention`` in checkpoint policies."""
        if self.sharding is not None:
            k, v = (self.sharding.for_all_devices(x) for x in (k, v))
        return _attend(q, k, v, segments, self)

    def run(self, fun: str, outputs: int, *args: Tensor | None) -> tuple[Tensor, ...]:
        """One of the passes, on each device."""

        def local(*args: Tensor | None) -> tuple[Tensor, ...]:
            name = f"{__package__}.{self.module}:{fun}"
            return xf.call_jax(name, *args, platform=self.platform, **dict(self.settings))

        if self.sharding is None:
            return local(*args)
        batch, heads = self.sharding.batch, self.sharding.heads
        specs = tuple(batch if i == _SEGMENTS else heads for i in range(len(args)))
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
