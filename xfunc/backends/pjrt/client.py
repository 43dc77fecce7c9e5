"""JAX as a PJRT client: its devices, and data on them."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from xfunc.backends import flags, forks
from xfunc.backends.errors import run_error
from xfunc.backends.flags import THREADS_PER_DEVICE, set_flags
from xfunc.backends.lock import once
from xfunc.core.counted import Counted
from xfunc.core.garbage import uncollected
from xfunc.errors import ShardingError, fail
from xfunc.torchlib import functorch
from xfunc.torchlib.arrays import BITS, copied
from xfunc.torchlib.storageless import is_without_memory, with_memory

if TYPE_CHECKING:
    import jax as jax_


@once
def jax() -> ModuleType:
    """JAX with 64-bit integers and floats; the first call starts its devices.

    Raises:
        ImportError: it is not installed.
    """
    result = library()
    count = os.environ.get("CPU_NUM_DEVICES", "")
    if count.isdecimal() and int(count) > 1 and result.config.jax_platforms == "cpu":
        _make_cpu_devices(result, int(count))
        with _patient():
            _check_cpu_devices(result, int(count))
    return result


def has_started() -> bool:
    """Whether xfunc has started JAX's devices."""
    return jax.cache_info().currsize > 0


@once
def library() -> ModuleType:
    """The module JAX; its devices may not have started.

    Raises:
        ImportError: it is not installed.
    """
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    # XLA warns for every program for several devices that its partitioner will be replaced. JAX
    # sets this as well, when it is imported.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        with uncollected():
            import jax

        config: Any = jax.config
        set_flags()
        _started_with[:] = [os.environ.get("XLA_FLAGS")]
    except ImportError as error:
        raise ImportError(
            "the backend 'pjrt' needs JAX, which is not installed\n"
            "Hint: pip install jax, or 'jax[cuda12]' for a GPU."
        ) from error
    if not _has_accelerator() and not config.jax_platforms:
        # JAX would ask an installed libtpu, which looks for its machine over the network.
        config.update("jax_platforms", "cpu")
    config.update("jax_enable_x64", True)
    return jax


def _make_cpu_devices(jax: ModuleType, count: int) -> None:
    """Make JAX start with virtual devices, and with several threads for each.

    A device that waits in a collective blocks its thread; see NOTE [virtual devices] in
    `xfunc.backends.flags`.
    """
    wanted, given = THREADS_PER_DEVICE * count, os.environ.get("NPROC", "")
    if not given.isdecimal() or int(given) < wanted:
        os.environ["NPROC"] = str(wanted)
    with contextlib.suppress(RuntimeError):  # It has started.
        jax.config.update("jax_num_cpu_devices", count)


def _check_cpu_devices(jax: ModuleType, count: int) -> None:
    if jax.local_device_count() != count:
        fail(
            RuntimeError,
            f"JAX started before xfunc, with {jax.local_device_count()} devices, and "
            f"CPU_NUM_DEVICES asks for {count}",
            "choose the backend before JAX is used, or set jax_num_cpu_devices first.",
        )


# NOTE [devices that are late] A device that waits in a collective for another one gives up, and XLA
# ends the process: after 5 and 10 seconds in jaxlib 0.7.1 and in torch_xla 2.9, after 20 and 40
# since. A machine may be so busy that a thread does not run for that long. Since jaxlib 0.8 a flag
# says how long; before, nothing does. torch_xla ends the process at a flag that it does not know,
# and reads them later than JAX, which reads them once: so this one is only set meanwhile.
_PATIENCE = "--xla_cpu_collective_call_terminate_timeout_seconds"
_SECONDS = 10**9


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """Let JAX read its flags, in a block that starts its devices, with one for late devices."""
    import jaxlib

    before = os.environ.get("XLA_FLAGS")
    if _PATIENCE in (before or "") or tuple(map(int, jaxlib.__version__.split(".")[:2])) < (0, 8):
        yield
        return
    _set_flags(f"{before or ''} {_PATIENCE}={_SECONDS}".strip())
    try:
        yield
        library()._src.lib.xla_client.CompileOptions()  # reads them, if nothing has
    finally:
        _set_flags(before)


def check_not_started() -> None:
    """Raise if it is too late to join other processes."""
    library()
    from jax._src import xla_bridge

    if has_started() or xla_bridge.backends_are_initialized():
        fail(
            RuntimeError,
            "xf.distributed.initialize came too late: JAX has started its devices",
            "call it at the start, before anything is computed by the backend 'pjrt' or JAX.",
        )


def kind_of_devices() -> str:
    """Which devices JAX will use, as far as this is known before it starts them."""
    return "the CPU" if library().config.jax_platforms == "cpu" else "accelerators"


def detected(
    address: str | None,
    count: int | None,
    index: int | None,
    devices: Sequence[int] | None,
    timeout: int,
) -> tuple[str | None, int | None, int | None, Sequence[int] | None]:
    """The arguments of `xfunc.distributed.initialize`, those missing as JAX finds them."""
    library()
    from jax._src import clusters

    address = address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    try:
        return clusters.ClusterEnv.auto_detect_unset_distributed_params(
            address, count, index, devices, None, timeout
        )
    except Exception as error:
        fail(
            RuntimeError,
            "xf.distributed.initialize cannot find out who the other processes are: "
            f"{type(error).__name__}: {error}",
            'pass coordinator_address="host:port", num_processes and process_id.',
        )


def join(address: str, count: int, index: int, devices: Sequence[int] | None, timeout: int) -> None:
    """Join the other processes; all of them call this; see `xfunc.distributed.initialize`."""
    options: dict[str, Any] = {"cluster_detection_method": "deactivate"}
    if given := os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"):
        port = address.rpartition(":")[2]
        options["coordinator_bind_address"] = f"{given.rpartition(':')[0]}:{port}"
    try:
        with _sigterm_kept():
            library().distributed.initialize(
                address, count, index, devices, initialization_timeout=timeout, **options
            )
    except RuntimeError as error:
        fail(
            RuntimeError,
            f"xf.distributed.initialize failed: {error}",
            "see whether the ports of process 0 can be reached.",
        )


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the SIGTERM handler that JAX replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # None was set by C, and only the main thread may set any.
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def keep_programs_in(folder: str | None) -> None:
    """See `xfunc.config.set_compilation_cache_dir`."""
    flags.compiled_programs = folder
    os.environ.pop(_CACHE.upper(), None)
    if "jax" in sys.modules:
        _use_cache(None)


def folder_of_programs() -> Path | None:
    """Where programs are kept for other processes; None: nowhere, or JAX's own cache keeps them."""
    folder = flags.compiled_programs
    if folder is None or getattr(jax().config, _CACHE):
        return None
    if jax().process_count() > 1:
        _use_cache(folder)
        return None
    return Path(folder)


_CACHE = "jax_compilation_cache_dir"


def _use_cache(folder: str | None) -> None:
    """Let JAX's own cache of compiled programs be in a folder, or be none."""
    from jax.experimental.compilation_cache import compilation_cache

    config: Any = library().config
    config.update(_CACHE, folder)
    if folder is not None:
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()  # It only looks for a folder at the first program.


def leave() -> None:
    """Leave the other processes, if JAX has joined them."""
    if library.cache_info().currsize:
        library().distributed.shutdown()


def _has_accelerator() -> bool:
    kinds = "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*"
    return "JAX_PLATFORMS" in os.environ or any(map(glob.glob, kinds))


_started_with: list[str | None] = []


@contextlib.contextmanager
def _flags_of_start() -> Iterator[None]:
    now = os.environ.get("XLA_FLAGS")
    _set_flags(_started_with[0])
    try:
        yield
    finally:
        _set_flags(now)


flags_of_start = Counted(_flags_of_start)
"""Shows JAX, in a block, the XLA_FLAGS that it started with.

torch_xla adds to them when it is loaded. They are part of the key of JAX's cache of compiled
programs, and a process that traces nothing would not find them.
"""


def _set_flags(flags: str | None) -> None:
    if flags is None:
        os.environ.pop("XLA_FLAGS", None)
    else:
        os.environ["XLA_FLAGS"] = flags  # in its place among the others, which functions may see


@functools.cache
def x64() -> Any:
    """JAX's setting for 64-bit values, which the user's own code may switch off.

    Its `value` is that of this thread; ``with x64()(True):`` switches it on in a block.
    """
    jax()
    from jax._src import config

    return config.enable_x64


def platform() -> str:
    """``"cpu"``, ``"gpu"`` or ``"tpu"``."""
    return jax().default_backend()


def put(tensor: torch.Tensor, sharding: jax_.sharding.Sharding) -> jax_.Array:
    """The values of a plain tensor in a new ``jax.Array``, by the host."""
    with x64()(True):
        if len(sharding.device_set) == 1:
            return put_array(copy_of(tensor), sharding)
        values = as_numpy(_plain(tensor))
        return jax().make_array_from_callback(
            values.shape, sharding, lambda part: np.array(values[part]), dtype=values.dtype
        )


def put_array(array: npt.NDArray[Any], sharding: jax_.sharding.Sharding) -> jax_.Array:
    """An array on one device, where JAX may keep the memory; with 64-bit values switched on.

    As ``jax.device_put``, which takes ten times as long for a small array.
    """
    devices = _devices_of(sharding)
    return _put()(_shaped(array.shape, array.dtype), sharding, [array], devices, True)


@functools.cache
def _put() -> Any:
    from jax._src.lib import xla_client

    return xla_client.batched_device_put


@functools.lru_cache(64)
def _devices_of(sharding: jax_.sharding.Sharding) -> list[Any]:
    return list(sharding.device_set)


@functools.lru_cache(4096)
def _shaped(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    return jax().core.ShapedArray(shape, dtype)


def copy_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The values of a plain tensor in memory that JAX may keep.

    The tensor may change while JAX uses them. JAX 0.7.1 does not copy memory that is aligned as
    torch's is, even with may_alias=False.
    """
    return as_numpy(_plain(tensor).clone(memory_format=torch.contiguous_format))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a plain tensor, in memory of the CPU."""
    if is_without_memory(tensor) and tensor.is_cpu:
        tensor = with_memory(tensor)
    return tensor.cpu().resolve_conj().resolve_neg()


def get(array: jax_.Array) -> torch.Tensor:
    """The values of a ``jax.Array`` in a new tensor of the CPU.

    Raises:
        ShardingError: other processes hold parts of it.
        ExecutionError: the program that was to compute them failed; it had only been launched.
        RuntimeError: see `xfunc.backends.forks.check`.
    """
    if not array.is_fully_addressable:
        if not array.is_fully_replicated:
            fail(
                ShardingError,
                f"a tensor of shape {tuple(array.shape)} was read, of which other processes "
                "hold parts",
                "use xf.distributed.process_allgather in all of them, or let a jitted function "
                "compute what you want to know.",
            )
        array = array.addressable_data(0)
    data: Any = array  # JAX's own types leave `is_ready` out.
    if not data.is_ready():
        forks.check()
    try:
        return copied(np.asarray(array))
    except RuntimeError as error:
        raise run_error("the program that was to compute this value", str(error)) from error


def as_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The memory of a plain tensor of the CPU as an array; bfloat16 and float8 as JAX has them."""
    if tensor.dtype in BITS:
        import ml_dtypes

        name = str(tensor.dtype).removeprefix("torch.")
        return tensor.detach().view(BITS[tensor.dtype]).numpy().view(getattr(ml_dtypes, name))
    return tensor.detach().numpy()


@functools.cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's dtype of a torch dtype, bfloat16 and float8 as JAX has them."""
    with functorch.bottom_level():  # A transform of torch's would wrap it.
        return as_numpy(torch.empty(0, dtype=dtype, device="cpu")).dtype
