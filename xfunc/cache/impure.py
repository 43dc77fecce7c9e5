"""Functions that give another result each time, or in each process, or on each machine.

A program traced through a call of one is not for another process: NOTE [what ran] in
`xfunc.cache.observed`.

NOTE [compiled code]: what a function in C or Rust reads leaves no trace in Python; `safetensors`
opens files by itself. So only the modules in C listed here may be called. Types are not seen when
they are called, only their methods, and Python calls operators without being seen at all.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from typing import Any

from xfunc.cache.classes import can_change
from xfunc.core.locations import is_of_program, is_of_xfunc

# Packages and modules in C that read nothing but what they are given, with exceptions below.
_KNOWN = frozenset(
    "builtins math cmath _operator operator itertools _functools functools _collections "
    "collections _sre re _string _struct array unicodedata _codecs binascii zlib _json _bisect "
    "_heapq _abc types _typing typing _contextvars _weakref weakref _warnings _thread sys datetime "
    "torch torch_xla _XLAC numpy optree jaxlib".split()
)
# Operators that torch has itself: those of other packages are in namespaces of their own.
_OPERATORS, _NAMESPACES = "torch._ops.", frozenset("aten prims prim c10d _c10d_functional".split())
# Of other modules in C, functions that may be called.
_PURE = frozenset(["fspath", "_path_normpath"])
_NOW = frozenset(["now", "utcnow", "today"])
# Functions of numpy and torch that read files, and of `_thread` that start what is not seen.
_UNSEEN = frozenset(
    "fromfile from_file import_ir_module start_new_thread start_joinable_thread".split()
)
# By the names of functions in C: hashes of text and addresses differ between processes, and the
# seeds of torch are in no key. Packages call most of these without depending on the result.
_BY_PROGRAM = frozenset(
    "id hash getrefcount getsizeof getallocatedblocks getrecursionlimit getswitchinterval "
    "get_ident get_native_id getweakrefcount data_ptr get_int_max_str_digits "
    "initial_seed seed get_state _get_extobj_dict".split()
)
# Functions of torch that tell a setting or a state, but for those that the key has, or that say the
# same in each trace.
_TELLS = re.compile(r"_?(get|is|are|has)_")
_IN_KEY = frozenset(
    "get_default_dtype is_grad_enabled is_inference_mode_enabled is_autocast_enabled "
    "is_autocast_cpu_enabled get_autocast_dtype get_autocast_cpu_dtype is_autocast_cache_enabled "
    "are_deterministic_algorithms_enabled is_tensor is_tensor_like is_storage".split()
)
# Modules in Python of which no function may be called from outside; they may have its result at
# hand, so that what they call in C is not seen.
_IN_PYTHON = frozenset("platform socket getpass uuid tempfile secrets locale linecache".split())
# The same for parts of packages.
_SETTINGS = (
    *("torch.backends", "torch._tensor_str", "torch.utils.deterministic"),
    *("numpy.core.arrayprint", "numpy._core.arrayprint", "numpy._core.printoptions"),
)
# Modules in Python that tell the program what its names do not.
_TELLTALES = frozenset("inspect importlib pkgutil traceback runpy pdb dis".split())
# By package, names of functions in Python that may not.
_GETTERS = {
    "torch": frozenset(
        "initial_seed seed get_rng_state get_float32_matmul_precision is_available device_count "
        "current_device get_device_name get_device_properties get_device_capability get_arch_list "
        "is_bf16_supported mem_get_info memory_allocated max_memory_allocated memory_reserved "
        "memory_stats get_printoptions get_rank get_world_size".split()
    ),
    "numpy": frozenset("geterr geterrcall getbufsize get_printoptions".split()),
    "threading": frozenset("current_thread get_ident get_native_id active_count".split()),
    "multiprocessing": frozenset(["current_process", "parent_process", "cpu_count"]),
    "sysconfig": frozenset(["get_platform", "get_config_var", "get_config_vars", "get_path"]),
    "typing": frozenset(["get_type_hints"]),
    "xfunc": frozenset(["process_index"]),
}
_NAMES = frozenset().union(*_GETTERS.values())


def calls_impure(frame: types.FrameType, function: Any) -> bool:
    """Whether a frame that calls a function in C calls one of these."""
    caller = frame.f_code.co_filename
    if is_of_xfunc(caller) or caller.startswith("<frozen importlib"):
        return False
    name = getattr(function, "__name__", "")
    # What a class makes its hash of, only those see who ask for the hash.
    if name in _BY_PROGRAM and frame.f_code.co_name != "__hash__" and is_of_program(frame.f_code):
        return True
    owner = getattr(function, "__self__", None)
    where = getattr(function, "__module__", None)
    if where is None and owner is not None:
        where = _origin(owner if isinstance(owner, type) else type(owner), name)
    if name in _UNSEEN or (where == "datetime" and name in _NOW):
        return True
    if isinstance(owner, types.ModuleType) and owner.__name__ == "torch._C" and _tells(name):
        return is_of_program(frame.f_code)
    return not (where is None or is_known(where) or name in _PURE)


def is_known(module: str) -> bool:
    """Whether a module in C reads nothing but what it is given."""
    if module.startswith(_OPERATORS):
        return module.removeprefix(_OPERATORS).strip() in _NAMESPACES
    return module.partition(".")[0] in _KNOWN


@functools.lru_cache(4096)
def _origin(kind: type, method: str) -> str:
    """The module of the class that defines a method in C; "" if that is not known."""
    classes = (*inspect.getmro(kind), *inspect.getmro(type(kind)))
    found = next((c for c in classes if method in vars(c)), kind)
    # Classes in Rust that name no module say builtins, whose classes cannot change.
    return "" if found.__module__ == "builtins" and can_change(found) else found.__module__


def _tells(name: str) -> bool:
    return name not in _IN_KEY and _TELLS.match(name) is not None


def is_impure(frame: types.FrameType) -> bool:
    """Whether a frame that starts is of a function in Python that is one of these."""
    where = _module_of(frame)
    package = where.partition(".")[0]
    name, by = frame.f_code.co_name, frame.f_back
    if by is None or is_of_xfunc(by.f_code.co_filename):
        return False
    if package in _IN_PYTHON or where.startswith(_SETTINGS):
        # torch and NumPy restore settings that they have read.
        return _module_of(by).partition(".")[0] != package
    if name in _NAMES and name in _GETTERS.get(package, ()):
        return _module_of(by).partition(".")[0] != package
    if (package in _TELLTALES and not frame.f_code.co_filename.startswith("<frozen")) or (
        package == "torch" and frame.f_code.co_qualname == name
    ):
        return (package != "torch" or _tells(name)) and is_of_program(by.f_code)
    return False


def _module_of(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
