"""The memory of the host, which programs on the CPU take their results from."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Iterable, Sequence

from xfunc.backends.errors import out_of_memory
from xfunc.core.types import Shaped


def check_results(name: str, results: Sequence[Shaped]) -> None:
    """Refuse results that the CPU's memory cannot hold.

    XLA would allocate them later, in a thread of its own: the kernel would kill the process, or
    torch_xla 2.9 would crash it with SIGSEGV at the next use of such a result.
    """
    required = sum(math.prod(x.shape) * x.dtype.itemsize for x in results)
    _check(f"the results of {name} take", required)


def check_sorts(name: str, sorts: Iterable[int]) -> None:
    """Refuse sorts of several arrays together that the CPU's memory cannot hold, by their bytes.

    To compile one of 2**36 elements, jaxlib 0.12 kills the process with SIGFPE.
    """
    for required in sorts:
        _check(f"a sort in {name} takes", required)


def _check(what: str, required: int) -> None:
    limit = _host_memory()
    if required > limit:
        text = f"{what} {required} bytes, and the machine has {limit}"
        raise out_of_memory(text, required, limit)


@functools.cache
def _host_memory() -> int:
    """Bytes of memory that this process may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            limits.append(int(file.read()))  # Not a number: no limit.
    return min(limits)
