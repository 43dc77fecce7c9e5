"""Functions that give another result each time, or in each process, or on each machine.

A program traced through a call of one is not for another process: NOTE [what ran] in
`xfunc.cache.observed`.
"""

from __future__ import annotations

import types
from typing import Any

from xfunc.core.locations import is_of_program, is_of_xfunc

# Modules in C whose functions do, whoever calls them.
_IN_C = frozenset(
    "time random _random _io io posix nt _socket secrets _uuid select pwd grp resource mmap fcntl "
    "_tracemalloc".split()
)
_PURE = frozenset(["fspath"])
_NOW = frozenset(["now", "utcnow", "today"])
# By the names of functions in C: hashes of text and addresses differ between processes, and the
# settings of torch are in no key. Packages call most of these without depending on the result.
_BY_PROGRAM = frozenset(
    "id hash getrefcount getsizeof getallocatedblocks getrecursionlimit getswitchinterval "
    "get_ident get_native_id getweakrefcount data_ptr "
    "initial_seed seed get_state get_num_threads get_num_interop_threads _get_extobj_dict".split()
)
# Modules in Python of which no function may be called from outside; they may have its result at
# hand, so that what they call in C is not seen.
_IN_PYTHON = frozenset("platform socket getpass uuid tempfile secrets locale".split())
# By package, names of functions in Python that may not.
_GETTERS = {
    "torch": frozenset(
        "initial_seed seed get_rng_state get_float32_matmul_precision is_available device_count "
        "current_device get_device_name get_device_properties get_device_capability get_arch_list "
        "is_bf16_supported mem_get_info memory_allocated max_memory_allocated memory_reserved "
        "memory_stats get_printoptions".split()
    ),
    "numpy": frozenset("geterr geterrcall getbufsize get_printoptions".split()),
    "threading": frozenset("current_thread get_ident get_native_id active_count".split()),
    "multiprocessing": frozenset(["current_process", "parent_process", "cpu_count"]),
    "sysconfig": frozenset(["get_platform", "get_config_var", "get_config_vars", "get_path"]),
}
_NAMES = frozenset().union(*_GETTERS.values())


def calls_impure(frame: types.FrameType, function: Any) -> bool:
    """Whether a frame that calls a function in C calls one of these."""
    caller = frame.f_code.co_filename
    if is_of_xfunc(caller) or caller.startswith("<frozen"):
        return False
    name = getattr(function, "__name__", "")
    # What a class makes its hash of, only those see who ask for the hash.
    if name in _BY_PROGRAM and frame.f_code.co_name != "__hash__" and is_of_program(frame.f_code):
        return True
    owner = getattr(function, "__self__", None)
    if isinstance(owner, types.ModuleType) or owner is None:
        where = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
        return where in _IN_C and name not in _PURE
    kind = owner if isinstance(owner, type) else type(owner)
    return kind.__module__ in _IN_C or (kind.__module__ == "datetime" and name in _NOW)


def is_impure(frame: types.FrameType) -> bool:
    """Whether a frame that starts is of a function in Python that is one of these."""
    where = _module_of(frame)
    package = where.partition(".")[0]
    if package not in _IN_PYTHON:
        name = frame.f_code.co_name
        if name not in _NAMES or name not in _GETTERS.get(package, ()):
            return False
    by = frame.f_back  # torch and NumPy restore settings that they have read.
    if by is None or is_of_xfunc(by.f_code.co_filename):
        return False
    return _module_of(by).partition(".")[0] != package


def _module_of(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
