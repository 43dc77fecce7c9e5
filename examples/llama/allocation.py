"""Memory that the CPU computes in is kept from one step to the next."""

import ctypes
import sys

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_memory() -> bool:
    """Let glibc keep what XLA frees after each step, instead of giving it back to the system.

    XLA's CPU client allocates the temporary arrays of a program at each call. Those of 32 MiB and
    more glibc gets from the system and gives back, each time, and the system zeroes page after
    page when they are touched: up to a quarter of a small model's step. The arenas of threads do
    the same beyond 64 MiB, so there is one arena. It has to be called before XLA has threads.

    Returns whether it was done: only glibc can.
    """
    libc = ctypes.CDLL(None)
    if sys.platform != "linux" or not hasattr(libc, "gnu_get_libc_version"):
        return False
    options = (_TRIM_THRESHOLD, 2**31 - 1), (_MMAP_MAX, 0), (_ARENA_MAX, 1)
    return all(libc.mallopt(name, value) for name, value in options)
