"""The devices that programs run on, and moving trees between them and the host."""

from __future__ import annotations

from typing import TypeVar

import torch

from xfunc import tree
from xfunc.backends.active import runtime
from xfunc.tree import PyTree

T = TypeVar("T")


def devices() -> list[int]:
    """The indices of the devices that programs run on, as `make_mesh` takes them.

    Source: ``jax.devices``.
    """
    return list(range(runtime().device_count()))


def device_count() -> int:
    """The number of devices that programs run on, including those of other processes.

    Source: ``jax.device_count``.
    """
    return runtime().device_count()


def default_backend() -> str:
    """The platform that programs run on: ``"cpu"``, ``"gpu"`` or ``"tpu"``.

    Source: ``jax.default_backend``.
    """
    return runtime().platform()


def process_count() -> int:
    """The number of processes that run programs together.

    Source: ``jax.process_count``.
    """
    return runtime().process_count()


def process_index() -> int:
    """The index of this process among those that run programs together.

    Source: ``jax.process_index``.
    """
    return runtime().process_index()


def memory_stats() -> dict[str, int] | None:
    """The use of the device's memory, in bytes: ``bytes_in_use`` and ``bytes_limit``.

    None if the device's client does not report it: on the CPU, and with torch_xla on several
    devices (torch_xla 2.9: "MemoryInfo not supported for SPMD").

    Source: ``jax.Device.memory_stats``.
    """
    return runtime().memory_stats()


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """See `xfunc.backends.protocol.Runtime.to_device`; outside of traces."""
    return runtime().to_device(tensor)


def device_get(x: PyTree) -> PyTree:
    """The tree with every tensor copied to the host."""
    return tree.map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, x)


def block_until_ready(x: T) -> T:
    """Wait until everything that was launched has run; returns `x`."""
    runtime().block()
    return x
