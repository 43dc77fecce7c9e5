"""Several processes that run programs together, each on devices of its own.

    xf.distributed.initialize()
    mesh = xf.make_mesh((xf.device_count(),), ("data",))  # of the devices of all processes

Every process runs the same program: the same functions in the same order. Each holds the parts of
sharded tensors that lie on its devices.

Source: ``jax.distributed``, ``jax.experimental.multihost_utils``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from xfunc import tree
from xfunc.backends import processes
from xfunc.backends.active import runtime
from xfunc.backends.placement import is_on_devices
from xfunc.errors import TreeMismatchError, fail

__all__ = [
    "broadcast_one_to_all",
    "initialize",
    "is_initialized",
    "process_allgather",
    "shutdown",
    "sync_global_devices",
]


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    *,
    initialization_timeout: int = 300,
) -> None:
    """Join the processes that run this program; choose the backend ``"pjrt"``.

    Each process calls it once, before anything else of xfunc. What is not given is found out: from
    the variables of ``torchrun``, or as JAX does on a Cloud TPU, under SLURM, Open MPI and
    Kubernetes. ``torch.distributed`` has the same processes from then on (with gloo, unless it was
    initialized before), which is how checkpoints are written together.

    Args:
        coordinator_address: ``"host:port"`` of the first process, at a port that is free there.
        num_processes: how many there are.
        process_id: the number of this one.
        local_device_ids: the GPUs of this process; all that it sees, if not given.
        initialization_timeout: seconds to wait for the others.

    Raises:
        RuntimeError: it was called before, or too late, or the others did not come.
        ValueError: something is neither given nor found, or makes no sense.
        ImportError: JAX is not installed.

    Source: ``jax.distributed.initialize``.
    """
    processes.start(
        coordinator_address, num_processes, process_id, local_device_ids, initialization_timeout
    )


def is_initialized() -> bool:
    """Whether `initialize` has been called.

    Source: ``jax.distributed.is_initialized``.
    """
    return processes.are_joined()


def shutdown() -> None:
    """Leave the other processes. At the end of a program that happens by itself.

    Source: ``jax.distributed.shutdown``.
    """
    processes.stop()


def sync_global_devices(name: str) -> None:
    """Wait until all processes have come here, and what they launched has run.

    Args:
        name: of the place, which must be the same in all processes.

    Raises:
        ValueError: the processes are at different places.

    Source: ``jax.experimental.multihost_utils.sync_global_devices``.
    """
    runtime().block()
    names = processes.gathered(name)
    if len(set(names)) > 1:
        fail(
            ValueError,
            f"sync_global_devices: the processes are at different places: {names}",
            "call it in the same order, with the same names, in each of them.",
        )


def process_allgather(x: object, tiled: bool = False) -> Any:
    """The values of all processes, on the host of each.

    Of a tensor on the devices of several processes: its whole value. Of one on the host, which each
    process has one of: these, stacked along a new first axis.

    Args:
        x: a tree of tensors and numbers, of the same shapes in all processes.
        tiled: whether the others are concatenated along their first axis, and not stacked.

    Raises:
        TreeMismatchError: the trees differ.

    Source: ``jax.experimental.multihost_utils.process_allgather``.
    """
    leaves, structure = tree.flatten(x)
    of_all = [_is_of_all(leaf) for leaf in leaves]
    own = [None if g else _on_host(leaf) for leaf, g in zip(leaves, of_all, strict=True)]
    _check_alike("process_allgather", structure, own)
    found = [
        _whole(leaf) if host is None else _gathered(host, tiled)
        for leaf, host in zip(leaves, own, strict=True)
    ]
    return tree.unflatten(structure, found)


def broadcast_one_to_all(x: object, is_source: bool | None = None) -> Any:
    """The values of one process, on the host of each.

    Args:
        x: a tree of tensors and numbers, of the same shapes in all processes.
        is_source: whether this is the process; None: the first one is.

    Raises:
        TreeMismatchError: the trees differ.
        ValueError: not just one process is the source.

    Source: ``jax.experimental.multihost_utils.broadcast_one_to_all``.
    """
    leaves, structure = tree.flatten(x)
    own = [_on_host(leaf) for leaf in leaves]
    _check_alike("broadcast_one_to_all", structure, own)
    chosen = runtime().process_index() == 0 if is_source is None else bool(is_source)
    sources = [k for k, is_it in enumerate(processes.gathered(chosen)) if is_it]
    if len(sources) != 1:
        fail(
            ValueError,
            f"broadcast_one_to_all: the processes {sources} say that they are the source",
            "pass is_source=True in one of them, and False in the others.",
        )
    if runtime().process_count() > 1:
        for value in own:
            distributed.broadcast(_bytes_of(value), sources[0])
    return tree.unflatten(structure, own)


def _on_host(leaf: object) -> torch.Tensor:
    return torch.as_tensor(leaf).detach().cpu().clone(memory_format=torch.contiguous_format)


def _is_of_all(leaf: object) -> bool:
    """Whether a leaf is a tensor that lies on devices of other processes too."""
    several = runtime().process_count() > 1
    return several and isinstance(leaf, torch.Tensor) and is_on_devices(leaf)


def _whole(x: torch.Tensor) -> torch.Tensor:
    return runtime().put(x.detach(), None).cpu()


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor, in the dtype that gloo knows."""
    return x.reshape(-1).view(torch.uint8)


def _gathered(x: torch.Tensor, tiled: bool) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(runtime().process_count())]
    if len(parts) == 1:
        parts = [x]
    else:
        distributed.all_gather([_bytes_of(p) for p in parts], _bytes_of(x))
    return torch.cat(parts) if tiled and x.ndim else torch.stack(parts)


def _check_alike(
    name: str, structure: tree.Structure, leaves: Sequence[torch.Tensor | None]
) -> None:
    """Raise, in all processes, unless all have the same tree: else they would wait for ever."""
    said = [str(structure), [x if x is None else (tuple(x.shape), str(x.dtype)) for x in leaves]]
    for k, other in enumerate(processes.gathered(said)):
        if other != said:
            fail(
                TreeMismatchError,
                f"{name} was given {said} in this process, and {other} in process {k}",
                "pass trees of the same structure, shapes and dtypes in all of them.",
            )
