"""The running device: torch_xla's PJRT client, reached without going through its lazy tensors.

Everything here knows torch_xla and nothing above it. Programs are compiled and run by
`xfunc.backends.torch_xla.executable`.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

import torch

from xfunc.backends import flags, forks, memory_maps
from xfunc.backends.flags import THREADS_PER_DEVICE, set_flags
from xfunc.backends.lock import once
from xfunc.backends.torch_xla.loading import load
from xfunc.core.types import Shaped
from xfunc.errors import fail, format_error


@once
def xla() -> ModuleType:
    """torch_xla's C++ module; the first call loads torch_xla and starts the device client."""
    os.environ["PJRT_DEVICE"] = _kind_of_device()
    set_flags()
    if os.environ["PJRT_DEVICE"] == "CPU" and memory_maps.map_limit():
        # See NOTE [memory maps] in `xfunc.backends.memory_maps`.
        size = max(memory_maps.map_limit() // memory_maps.MAPS_OF_A_PROGRAM, 64)
        os.environ.setdefault("XLA_COMPILATION_CACHE_SIZE", str(size))
    if not {"PT_XLA_DEBUG", "PT_XLA_DEBUG_LEVEL"} & os.environ.keys():
        # torch_xla reports each refused read there; by default, on stderr.
        os.environ.setdefault("PT_XLA_DEBUG_FILE", os.devnull)
    _keep_programs()
    _make_room_for_devices()
    try:
        torch_xla = load()
    except ModuleNotFoundError as error:
        raise ImportError(_without(error)) from error
    _use_all_devices()
    torch_xla.device()
    importlib.import_module("xfunc.backends.torch_xla.transfers").install()  # It imports this.
    return torch_xla._XLAC


def _kind_of_device() -> str:
    """The variable PJRT_DEVICE, or its value once `xla` has started the client."""
    if "PJRT_DEVICE" in os.environ:
        return os.environ["PJRT_DEVICE"]
    # torch_xla guesses too, with a warning on every machine without an accelerator.
    chips = glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")
    return "TPU" if chips else "CPU"


def _keep_programs() -> None:
    """Keep compiled programs where JAX does; on the CPU, torch_xla 2.9 cannot read them again."""
    folder = flags.compiled_programs or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if folder and os.environ["PJRT_DEVICE"] != "CPU":
        os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", os.path.join(folder, "torch_xla"))


def _without(error: ModuleNotFoundError) -> str:
    return format_error(
        f"the backend 'torch_xla' needs torch_xla, which is not installed ({error})",
        "pip install torch==2.9.0 torch_xla==2.9.0, or unset XFUNC_BACKEND.",
    )


def _make_room_for_devices() -> None:
    if os.environ["PJRT_DEVICE"] != "CPU":
        return
    count = os.environ.get("CPU_NUM_DEVICES", "1")
    if not count.isdecimal() or int(count) < 2:
        return
    wanted, given = THREADS_PER_DEVICE * int(count), os.environ.get("NPROC", "")
    has_enough = given.isdecimal() and int(given) >= wanted
    if not has_enough:
        if forks.is_torch_xla_running():
            fail(
                RuntimeError,
                f"torch_xla started before xfunc, with {count} CPU devices and too few threads "
                "for them: their collectives would deadlock",
                "use xfunc (or call xf.config.set_cpu_devices) before torch_xla, or set the "
                f"environment variable NPROC={wanted}.",
            )
        os.environ["NPROC"] = str(wanted)
    # XLA warns for every program for several devices that its partitioner will be replaced.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def _use_all_devices() -> None:
    """Make torch_xla run one program on all devices; see NOTE [virtual devices]."""
    from torch_xla import _XLAC as X  # pyright: ignore[reportAttributeAccessIssue]
    from torch_xla import runtime as xr

    if X._xla_num_global_devices() == 1:
        os.environ.pop("XLA_USE_SPMD", None)  # a parent process's
    elif not xr.is_spmd():  # pyright: ignore[reportAttributeAccessIssue]
        xr.use_spmd()  # pyright: ignore[reportAttributeAccessIssue]


@functools.cache
def device_count() -> int:
    """The number of devices that programs run on, including those of other processes."""
    return xla()._xla_num_global_devices()


def is_cpu() -> bool:
    """Whether programs run on the CPU; the client need not have started."""
    return _kind_of_device() == "CPU"


@functools.cache
def device() -> torch.device:
    """The device that programs run on."""
    xla()
    return sys.modules["torch_xla"].device()


@functools.cache
def builder() -> ModuleType:
    """torch_xla's bindings for HLO computations."""
    xla()
    from torch_xla.core import xla_builder  # pyright: ignore[reportMissingImports]

    return xla_builder


@contextlib.contextmanager
def switched(setting: str, value: bool | str) -> Iterator[None]:
    """Give a process-wide setting of torch_xla a value in a block."""
    X = xla()
    before = getattr(X, f"_get_{setting}")()
    put = getattr(X, f"_set_{setting}")
    put(value)
    try:
        yield
    finally:
        put(before)


def computation(name: str, hlo: bytes) -> object:
    """torch_xla's handle to an HLO module."""
    return builder().computation_from_module_proto(name, hlo)


def process_count() -> int:
    """The number of processes that run programs together."""
    return xla()._xla_get_num_processes()


def process_index() -> int:
    """The index of this process in the group that runs programs together."""
    return xla()._xla_get_process_index()


def memory_stats(number: int) -> dict[str, int] | None:  # of the only device
    """See `xfunc.memory_stats`."""
    if is_cpu() or device_count() > 1:
        return None
    found: dict[str, int] = xla()._xla_memory_info(str(device()))
    names = {"bytes_used": "bytes_in_use", "peak_bytes_used": "peak_bytes_in_use"}
    return {names.get(name, name): value for name, value in found.items()}


@functools.cache
def local_devices() -> tuple[int, ...]:
    """The numbers of this process's devices, in torch_xla's order."""
    names = xla()._xla_get_runtime_devices()  # CPU:0, CPU:1, ...
    return tuple([int(name.partition(":")[2]) for name in names])


FLOAT8 = {torch.float8_e4m3fn: "f8e4m3fn", torch.float8_e5m2: "f8e5m2"}
"""XLA's names of the dtypes of 8 floating bits."""


def placeholder(aval: Shaped) -> torch.Tensor:
    """A tensor without data on the device."""
    dims, kind = tuple(aval.shape), FLOAT8.get(aval.dtype)
    if kind is None:  # torch_xla 2.9 holds FLOAT8 too, but its table for Python lacks them.
        kind = builder().Op.from_torch_type(aval.dtype)
    return xla()._xla_create_placeholder_tensor(builder().mkshape(kind, dims).shape)


def user_computation(
    name: str, inputs: Sequence[torch.Tensor], computation: object
) -> list[torch.Tensor]:
    """One lazy node that applies a computation."""
    return xla()._xla_user_computation(f"xfunc::{name}", list(inputs), computation)


def materialize(tensors: Sequence[torch.Tensor]) -> None:
    """Give data to lazy tensors whose computation is still pending."""
    wait()
    xla()._xla_sync_multi(list(tensors), [str(device())], True, True)


def settle_all() -> None:
    """Run everything that is pending, so that each tensor of the device has a buffer of its own.

    A pending operation of torch_xla, such as `clone`, needs the buffers of its operands.
    """
    wait()
    with contextlib.suppress(RuntimeError):  # A tensor that lost its computation is still alive.
        xla()._xla_sync_live_tensors(str(device()), [], False)


def wait() -> None:
    """Wait until the virtual devices are idle; see NOTE [virtual devices]."""
    if is_cpu() and device_count() > 1:
        xla()._xla_wait_device_ops([])


def block() -> None:
    """Wait until everything launched has run."""
    xla()._xla_wait_device_ops([])  # of all devices
