"""The devices that programs run on, and moving trees between them and the host."""

from __future__ import annotations

from typing import TypeVar

import torch

from xfunc import tree
from xfunc.backends.active import runtime
from xfunc.errors import fail, short_repr
from xfunc.tree import PyTree

T = TypeVar("T")


def devices() -> list[int]:
    """The indices of the devices that programs run on, as `make_mesh` takes them.

    Returns:
        The list ``[0, 1, ..., device_count() - 1]``.

    Source: ``jax.devices``.
    """
    return list(range(runtime().device_count()))


def device_count() -> int:
    """The number of devices that programs run on, including those of other processes.

    Returns:
        The number, which is the length of the list from `devices`.

    Source: ``jax.device_count``.
    """
    return runtime().device_count()


def local_devices() -> list[int]:
    """The indices of the devices of this process.

    Returns:
        Some of the numbers that `devices` lists, in ascending order.

    Semantics: ``jax.local_devices``.
    """
    return sorted(runtime().local_devices())


def local_device_count() -> int:
    """The number of devices of this process.

    Returns:
        The length of `local_devices`.

    Semantics: ``jax.local_device_count``.
    """
    return len(runtime().local_devices())


def default_backend() -> str:
    """The platform that programs run on: ``"cpu"``, ``"gpu"`` or ``"tpu"``.

    Returns:
        The name of the platform.

    Source: ``jax.default_backend``.
    """
    return runtime().platform()


def process_count() -> int:
    """The number of processes that run programs together.

    Returns:
        The number; 1 if there are no other processes.

    Source: ``jax.process_count``.
    """
    return runtime().process_count()


def process_index() -> int:
    """The index of this process in the group that runs programs together.

    Returns:
        An integer from 0 to ``process_count() - 1``.

    Source: ``jax.process_index``.
    """
    return runtime().process_index()


def memory_stats(device: int | None = None) -> dict[str, int] | None:
    """The use of a device's memory, in bytes.

    ``bytes_in_use`` now, ``peak_bytes_in_use`` at once so far, and ``bytes_limit``, as far as the
    device's client reports them. None if it reports none: on the CPU, and with torch_xla on
    several devices (torch_xla 2.9: "MemoryInfo not supported for SPMD").

    Args:
        device: a device of this process, by its number in `devices`; None: the first of them.

    Returns:
        A dictionary of numbers of bytes by these names, or None.

    Raises:
        ValueError: this process has no such device.

    Source: ``jax.Device.memory_stats``.
    """
    local = runtime().local_devices()
    if device is not None and device not in local:
        fail(
            ValueError,
            f"memory_stats was given {short_repr(device)}, and the devices of this process are "
            f"{list(local)}",
            "pass the number of one of them.",
        )
    return runtime().memory_stats(local[0] if device is None else device)


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """See `xfunc.backends.protocol.Runtime.to_device`; outside of traces."""
    return runtime().to_device(tensor)


def device_get(x: PyTree) -> PyTree:
    """The tree with every tensor copied to the host.

    Args:
        x: a tree of tensors and anything else.

    Returns:
        A tree like `x`: each tensor becomes a CPU tensor of its shape and dtype, which is not
        differentiated; other leaves are unchanged.
    """
    return tree.map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, x)


def block_until_ready(x: T) -> T:
    """Wait for all launched programs; returns `x`.

    Args:
        x: anything.

    Returns:
        `x` itself.
    """
    runtime().block()
    return x
