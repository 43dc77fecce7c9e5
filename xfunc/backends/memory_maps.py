"""The limit of a process on memory maps, which XLA does not check: it crashes without more."""

from __future__ import annotations

import contextlib
import functools

from xfunc.errors import CompileError, fail

# NOTE [memory maps]
# A program compiled for the CPU holds 3 to 150 memory maps, depending on its size, and Linux allows
# a process 65530: they run out before torch_xla's cache of 2048 programs is full, and XLA dies with
# SIGSEGV. A smaller cache evicts in time; evicted programs are compiled again. JAX has none:
# its programs live as long as ours.
MAPS_OF_A_PROGRAM = 200


class _Compiles:
    """How many more programs are compiled before maps are counted again."""

    uncounted = 0


@functools.cache
def map_limit() -> int:
    """How many memory maps the process may have; 0 if that is not known."""
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/vm/max_map_count") as file:
        return int(file.read())
    return 0


def count_maps() -> int:
    """How many the process has; 0 if that is not known."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:
        return sum(1 for _ in file)
    return 0


def check_maps(name: str, repair: str) -> None:
    """Refuse to compile for the CPU when XLA would crash; see NOTE [memory maps]."""
    _Compiles.uncounted -= 1
    if _Compiles.uncounted > 0 or not map_limit():
        return
    used = count_maps()
    # Counting takes longer the more there are; near the limit it is done each time.
    _Compiles.uncounted = min(16, (map_limit() - used) // (20 * MAPS_OF_A_PROGRAM))
    if used > 0.95 * map_limit():
        fail(
            CompileError,
            f"{name} cannot be compiled: the process holds {used} memory maps, mostly for "
            f"previously compiled programs, and Linux allows {map_limit()}",
            f"compile fewer programs in one process, or keep fewer: {repair}.",
            at=None,
        )
