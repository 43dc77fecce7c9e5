"""The limits of a process: memory maps and memory.

XLA does not check them: it crashes when it gets no more of either.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Sequence

import torch

from xfunc.backends.errors import out_of_memory
from xfunc.errors import CompileError, fail

# NOTE [memory maps]
# A program compiled for the CPU holds 3 to 150 memory maps, depending on its size, and Linux allows
# a process 65530: they run out before torch_xla's cache of 2048 programs is full, and XLA dies with
# SIGSEGV. A smaller cache evicts in time; evicted programs are compiled again.
MAPS_OF_A_PROGRAM = 200
_compiles = itertools.count(1)


@functools.cache
def map_limit() -> int:
    """How many memory maps the process may have; 0 if that is not known."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/vm/max_map_count") as file:
        return int(file.read())
    return 0


def check_maps(name: str) -> None:
    """Refuse to compile when XLA would crash; see NOTE [memory maps]."""
    if next(_compiles) % 16 or not map_limit() or os.environ["PJRT_DEVICE"] != "CPU":
        return
    with open("/proc/self/maps") as file:
        used = sum(1 for _ in file)
    if used > 0.95 * map_limit():
        fail(
            CompileError,
            f"{name} cannot be compiled: the process holds {used} memory maps, mostly for "
            f"previously compiled programs, and Linux allows {map_limit()}",
            "compile fewer programs in one process, or keep fewer: set the environment "
            "variable XLA_COMPILATION_CACHE_SIZE (now "
            f"{os.environ['XLA_COMPILATION_CACHE_SIZE']}) before the first trace.",
            at=None,
        )


def check_memory(name: str, outputs: Sequence[torch.Tensor]) -> None:
    """Refuse results that the CPU's memory cannot hold.

    XLA would allocate them later, in a thread of its own: the kernel would kill the process, or
    torch_xla 2.9 would crash it with SIGSEGV at the next use of such a result.
    """
    if os.environ["PJRT_DEVICE"] != "CPU":
        return
    required = sum(o.numel() * o.element_size() for o in outputs)
    limit = _host_memory()
    if required > limit:
        raise out_of_memory(
            f"the results of {name} take {required} bytes, and the machine has {limit}",
            required,
            limit,
        )


@functools.cache
def _host_memory() -> int:
    """Bytes of memory that this process may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            limits.append(int(file.read()))  # Not a number: no limit.
    return min(limits)
