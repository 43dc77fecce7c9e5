"""Memory that the CPU computes in is kept from one step to the next, in huge pages."""

import ctypes
import mmap
import os
import sys
from pathlib import Path

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_END = 64 << 20  # bytes that are never touched; more than is free elsewhere
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


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
    options = (_TRIM_THRESHOLD, -1), (_MMAP_MAX, 0), (_ARENA_MAX, 1)  # -1: never.
    if not all(libc.mallopt(name, value) for name, value in options):
        return False
    _ask_for_huge_pages(libc)
    return True


def _ask_for_huge_pages(libc: ctypes.CDLL) -> None:
    """Ask for huge pages where the heap will grow: products of large matrices look up many pages.

    Half of the machine's memory is reserved for it, which takes nothing until it is touched.
    """
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if _OVERCOMMIT.exists() and _OVERCOMMIT.read_text().strip() == "2":
        return  # There what is reserved counts as taken.
    size = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2
    if start := libc.malloc(size):  # A limit may forbid it.
        # Protobuf calls malloc_trim, which gives the end of the heap back: so this is its end.
        libc.malloc(_END)
        first = -start % mmap.PAGESIZE
        libc.madvise(start + first, size - first, mmap.MADV_HUGEPAGE)
        libc.free(start)
