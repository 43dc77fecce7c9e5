"""Memory that the CPU computes in is kept from one step to the next."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # of glibc's malloc.h


def keep_memory() -> bool:
    """Let glibc keep what XLA frees after each step, instead of giving it back to the system.

    Otherwise the system zeroes the pages of large arrays at each step, which takes up to a quarter
    of a small model's. Call it before XLA has threads. Returns whether it was done: only glibc can.
    """
    libc = ctypes.CDLL(None)
    if sys.platform != "linux" or not hasattr(libc, "gnu_get_libc_version"):
        return False
    options = (_TRIM_THRESHOLD, -1), (_MMAP_MAX, 0), (_ARENA_MAX, 1)  # -1: never.
    return all(libc.mallopt(name, value) for name, value in options)
