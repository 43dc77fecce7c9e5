"""Several processes that run programs together, each on devices of its own.

    xf.distributed.initialize()
    mesh = xf.make_mesh((xf.device_count(),), ("data",))  # of the devices of all processes

Every process runs the same program, calling the same functions in the same order. Each holds the
shards on its own devices.

Source: ``jax.distributed``, ``jax.experimental.multihost_utils``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeGuard

import torch
from torch import distributed

from xfunc import tree
from xfunc.backends import failures, processes
from xfunc.backends.active import runtime
from xfunc.backends.placement import placement_of_tensor
from xfunc.core.avals import short
from xfunc.errors import ShardingError, fail, short_repr
from xfunc.sharding.local_parts import target_of

__all__ = [
    "abort",
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
    """Connect the processes that run this program, and select the backend ``"pjrt"``.

    Call it once in each process, before any other function of xfunc. Missing arguments are taken
    from the environment variables of ``torchrun``, or detected as JAX does on Cloud TPUs and under
    SLURM, Open MPI and Kubernetes. It also initializes ``torch.distributed`` (with gloo, unless
    that has been done), which coordinates the writing of checkpoints. On a TPU pod it
    keeps the backend ``"torch_xla"`` if that was chosen or used before, or ``XFUNC_BACKEND`` names
    it: its runtime connects the hosts.

    The processes first meet at the address, and see that they fit each other. From then on they
    watch each other: if one ends by an uncaught error, or is killed, the others say so and exit
    with status 69 within seconds. Such an error is printed, and its process exits with status 1
    without Python's clean-up, which would wait for the others. A normal end, also by `sys.exit`,
    waits for the others; see `shutdown`. To end all at once, use `abort`.

    Args:
        coordinator_address: ``"host:port"`` of process 0, with a free port. Other connections use
            further ports, which are chosen freely.
        num_processes: the number of processes.
        process_id: the number of this process.
        local_device_ids: the GPUs of this process. By default what ``JAX_LOCAL_DEVICE_IDS`` lists;
            or one, if a launcher has started several processes on this host; or all.
        initialization_timeout: seconds to wait for the other processes.

    Raises:
        RuntimeError: it was called twice or too late, nobody answers at the address, or processes
            are missing, have the same number, or were told different numbers of them. Then all
            raise it, and none has joined.
        ValueError: an argument is invalid, or missing and cannot be detected.
        TypeError: an argument is of a wrong type.
        ImportError: JAX is not installed.

    Source: ``jax.distributed.initialize``.
    """
    processes.start(
        coordinator_address, num_processes, process_id, local_device_ids, initialization_timeout
    )


def is_initialized() -> bool:
    """Whether `initialize` has been called.

    Returns:
        A bool: True from `initialize` to `shutdown`.

    Source: ``jax.distributed.is_initialized``.
    """
    return processes.are_joined()


def shutdown() -> None:
    """Wait until all processes have called this, and disconnect from them.

    At the exit of the program this happens automatically, with a wait of at most 300 seconds, or 15
    seconds after `sys.exit` with a status other than 0; then all processes end.

    Source: ``jax.distributed.shutdown``.
    """
    processes.stop()


def abort(message: object, status: int = 1) -> NoReturn:
    """End all processes because of an error in this one.

    It prints the message, sends it to the others, and exits at once: Python does not clean up. The
    others print it too, and exit with status 69. An uncaught error does the same.

    Args:
        message: says what is wrong: a text, or an error.
        status: the exit status of this process, from 1 to 255.

    Raises:
        ValueError: the status is another; like any uncaught error, this ends all processes too.
    """
    if type(status) is not int or not 1 <= status <= 255:
        fail(
            ValueError,
            f"abort was given {short_repr(status)} as status, "
            f"and the message {short_repr(message)}",
            "pass an exit status from 1 to 255.",
        )
    failures.abort(message, status)


def sync_global_devices(name: str) -> None:
    """Wait until all processes have reached this call and finished the work they launched.

    Args:
        name: identifies the call; it must be the same in all processes.

    Raises:
        TypeError: the name is no text, in some process.
        ValueError: the names differ.
        RuntimeError: the work of another process failed.

    Source: ``jax.experimental.multihost_utils.sync_global_devices``.
    """

    def finish() -> tuple[None, None]:
        if not isinstance(name, str):
            problem = f"sync_global_devices was given {short_repr(name)} as name"
            fail(TypeError, problem, "pass a text that names the place in the program.")
        runtime().block()
        return None, None

    processes.agreed("sync_global_devices", finish)
    names = processes.gathered(name)
    if len(set(names)) > 1:
        fail(
            ValueError,
            f"sync_global_devices: the processes are at different places: {names}",
            "call it in the same order, with the same names, in each of them.",
        )


def process_allgather(x: object, tiled: bool = False) -> Any:
    """Gather values from all processes onto the host of each.

    A tensor on the devices of several processes is returned whole. Tensors on the host, one in each
    process, are stacked along a new first axis.

    Args:
        x: a tree of tensors and numbers, with the same shapes and shardings in all processes.
        tiled: concatenate host tensors along their first axis instead of stacking them.

    Returns:
        A tree like `x` of tensors on the host. From ``[n, ...]`` on the host of each it gives
        ``[processes, n, ...]``, or with `tiled` ``[processes * n, ...]``; a number gives
        ``[processes]``. A tensor on the devices of several processes keeps its shape; all keep
        their dtypes.

    Raises:
        TreeMismatchError: the trees differ.
        TypeError: a leaf cannot be made a tensor.
        RuntimeError: the call failed in another process.

    Source: ``jax.experimental.multihost_utils.process_allgather``.
    """
    name = "process_allgather"

    def prepare() -> tuple[object, tuple[tree.Structure, list[torch.Tensor]]]:
        leaves, structure = tree.flatten(x)
        found = [leaf if _is_of_all(leaf) else _on_host(name, leaf) for leaf in leaves]
        return _described(structure, found), (structure, found)

    structure, found = processes.agreed(name, prepare)
    whole = [processes.whole(t) if _is_of_all(t) else _gathered(t, tiled) for t in found]
    return tree.unflatten(structure, whole)


def broadcast_one_to_all(x: object, is_source: bool | None = None) -> Any:
    """Send the values of one process to the hosts of all.

    Args:
        x: a tree of tensors and numbers, with the same shapes in all processes.
        is_source: whether this process is the source; by default process 0 is.

    Returns:
        A tree like `x` of tensors on the host, with the shapes and dtypes of `x` and the values of
        the source.

    Raises:
        TreeMismatchError: the trees differ.
        TypeError: a leaf cannot be made a tensor.
        ShardingError: a leaf is spread over the devices of several processes.
        RuntimeError: the call failed in another process.
        ValueError: there is not exactly one source.

    Source: ``jax.experimental.multihost_utils.broadcast_one_to_all``.
    """
    name = "broadcast_one_to_all"

    def prepare() -> tuple[object, tuple[tree.Structure, list[torch.Tensor], bool]]:
        leaves, structure = tree.flatten(x)
        for leaf in leaves:
            _check_is_whole(name, leaf)
        own = [_on_host(name, leaf) for leaf in leaves]
        chosen = runtime().process_index() == 0 if is_source is None else bool(is_source)
        return _described(structure, own), (structure, own, chosen)

    structure, own, chosen = processes.agreed(name, prepare)
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


def _on_host(name: str, leaf: object) -> torch.Tensor:
    return processes.on_host(name, leaf).clone(memory_format=torch.contiguous_format)


def _is_of_all(leaf: object) -> TypeGuard[torch.Tensor]:
    """Whether a leaf is a tensor on the devices of several processes."""
    return isinstance(leaf, torch.Tensor) and processes.is_shared(leaf)


def _check_is_whole(name: str, leaf: object) -> None:
    """Raise if no process has a leaf whole."""
    if _is_of_all(leaf) and placement_of_tensor(leaf) is not None:
        fail(
            ShardingError,
            f"{name} was given {short(leaf)} that is spread over the devices of several processes",
            "use xf.distributed.process_allgather, which gives the whole to each, or give "
            "xf.device_put a replicated sharding.",
        )


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    """A tensor's memory as bytes, which gloo can send."""
    return x.reshape(-1).view(torch.uint8)


def _gathered(x: torch.Tensor, tiled: bool) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(runtime().process_count())]
    if len(parts) == 1:
        parts = [x]
    else:
        distributed.all_gather([_bytes_of(p) for p in parts], _bytes_of(x))
    return torch.cat(parts) if tiled and x.ndim else torch.stack(parts)


def _described(structure: tree.Structure, leaves: Sequence[torch.Tensor]) -> object:
    """The values on which all processes must agree; otherwise they would wait forever, or end."""
    each = [
        str(target_of(x)) if _is_of_all(x) else f"{short(x)} on the host of each" for x in leaves
    ]
    return [str(structure), each]
