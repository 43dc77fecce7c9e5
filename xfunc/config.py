"""Settings of the process, and when they take effect.

`set_platform` and `set_cpu_devices` configure the device client, which the first trace or transfer
starts: later they raise. The environment variables ``PJRT_DEVICE`` and ``CPU_NUM_DEVICES``, set
before the program starts, mean the same.
"""

from __future__ import annotations

import os
from importlib import metadata

from xfunc.backends import active, forks
from xfunc.backends.pjrt import client
from xfunc.errors import fail, short_repr

__all__ = [
    "hide_library_frames",
    "set_backend",
    "set_compilation_cache_dir",
    "set_cpu_devices",
    "set_platform",
    "shard_as_in_scan",
    "tpu_compiler",
    "use_shardy_partitioner",
]


def _has_new_jax() -> bool:
    """Whether JAX is 0.10 or newer, without importing it."""
    try:
        found = metadata.version("jax").split(".")
    except metadata.PackageNotFoundError:
        return False
    return (int(found[0]), int(found[1])) >= (0, 10)


hide_library_frames: bool = True
"""Whether tracebacks of errors raised through xfunc leave out the frames of xfunc and torch."""

shard_as_in_scan: bool = True
"""Whether gradients inside scans are sharded like their values."""

tpu_compiler: str = os.environ.get("XFUNC_TPU_COMPILER") or "installed"
"""The libtpu that ``Lowered.compile(target=...)`` uses.

``"installed"``: the one installed with this xfunc (the extra ``aot``). Or the path of a Python that
has jax and libtpu. The environment variable ``XFUNC_TPU_COMPILER`` means the same.
"""

use_shardy_partitioner: bool = _has_new_jax()
"""Whether Shardy partitions programs, as JAX 0.10 or newer does by default, rather than GSPMD.

It applies to the backend ``"pjrt"`` and to ``Lowered.compile(target=...)``; torch_xla has GSPMD
only.

Source: ``jax_use_shardy_partitioner``.
"""


def set_platform(platform: str) -> None:
    """Run on ``"cpu"`` or ``"tpu"``.

    Raises:
        ValueError: the platform is another.
        RuntimeError: the device client has started.
    """
    if platform not in ("cpu", "tpu"):
        fail(
            ValueError,
            f"config.set_platform was given {short_repr(platform)}",
            "pass 'cpu' or 'tpu'.",
        )
    _check_not_started("set_platform")
    os.environ["PJRT_DEVICE"] = platform.upper()


def set_backend(name: str) -> None:
    """Run programs by ``"pjrt"``, JAX's runtime (the default), or by ``"torch_xla"``.

    It may be called at any time: data moves to where a program needs it, and compiled programs are
    kept for each backend. ``xf.default_backend()`` returns the kind of devices.
    The environment variable ``XFUNC_BACKEND`` set before the program starts means the same.

    Raises:
        ValueError: there is no backend with that name.
        ImportError: for ``"torch_xla"``, torch_xla is not installed.
    """
    active.use(name)


def set_compilation_cache_dir(folder: str | os.PathLike[str] | None) -> None:
    """Keep compiled programs in a folder, for other processes; None or ``""`` keeps none.

    A program is found by its HLO, its options, the devices, the CPU's instructions, and the
    versions of JAX and XLA. Functions are traced anew in each process. The folder may be shared and
    deleted at any time; nothing else deletes anything from it. Other users must not be able to
    write to it: programs are code. The environment variable ``JAX_COMPILATION_CACHE_DIR`` selects
    JAX's own cache instead, of programs that take a second or longer to compile. On a TPU,
    torch_xla keeps programs there too (its ``XLA_PERSISTENT_CACHE_PATH``) if this comes before its
    first use; on the CPU, only the backend ``"pjrt"`` can.

    Raises:
        TypeError, ValueError: this is no path of a folder.

    Source: ``jax_compilation_cache_dir``.
    """
    client.keep_programs_in(_absolute("set_compilation_cache_dir", folder))


def set_cpu_devices(n: int) -> None:
    """Give the CPU `n` virtual devices (1 to 128), for sharded programs without an accelerator.

    Raises:
        ValueError: the number is out of range.
        RuntimeError: the device client has started.
    """
    # 128: the device index of torch's autograd engine is a signed byte.
    if not 1 <= n <= 128:
        fail(
            ValueError,
            f"config.set_cpu_devices was given {short_repr(n)}",
            "pass a number from 1 to 128.",
        )
    _check_not_started("set_cpu_devices")
    os.environ["PJRT_DEVICE"] = "CPU"
    os.environ["CPU_NUM_DEVICES"] = str(n)


def _absolute(setting: str, folder: str | os.PathLike[str] | None) -> str | None:
    """Absolute path of a folder, unaffected by later `os.chdir`; "" stands for none."""
    given: object = os.fspath(folder) if isinstance(folder, os.PathLike) else folder
    if given is None or given == "":
        return None
    if not isinstance(given, str) or "\0" in given:
        fail(
            TypeError if not isinstance(given, str) else ValueError,
            f"config.{setting} was given {short_repr(folder)}, which is no path",
            "pass the path of a folder, as a str or a pathlib.Path; None keeps nothing.",
        )
    return os.path.abspath(os.path.expanduser(given))


def _check_not_started(setting: str) -> None:
    if client.has_started() or forks.is_torch_xla_running():
        fail(
            RuntimeError,
            f"config.{setting} came after the device client had started",
            "call it before the first trace, transfer or use of a device.",
        )
