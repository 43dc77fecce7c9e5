"""The devices that programs run on, and moving trees between them and the host."""

from __future__ import annotations

from typing import Any

import torch

from xfunc import tree
from xfunc.backends.torch_xla import runtime


def devices() -> list[int]:
    """The numbers of the devices that programs run on, as `make_mesh` takes them.

    Source: ``jax.devices``.
    """
    return list(range(runtime.device_count()))


def default_backend() -> str:
    """What programs run on: ``"cpu"`` or ``"tpu"``.

    Source: ``jax.default_backend``.
    """
    return "cpu" if runtime.is_cpu() else "tpu"


def device_get(x: Any) -> Any:
    """The tree with every tensor copied to the host."""
    return tree.map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, x)


def block_until_ready(x: Any) -> Any:
    """Wait until everything that was launched has run; returns `x`."""
    runtime.block()
    return x
