"""Processes forked from one whose devices had started.

A fork has one thread. Those of the device's client, which compile programs, run them and move data,
are missing: whatever waits for them would wait forever. So in a fork the runtime is replaced by an
error, and nothing can be traced; the normal call path has no fork check.

Without devices, a fork can only compute with torch or NumPy, and end.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
from collections.abc import Callable

from xfunc.backends import lock
from xfunc.errors import fail

_begins: list[Callable[[], None]] = []
_is_cut_off = False


def at_start(do: Callable[[], None]) -> None:
    """Call a function in each fork that begins without its devices."""
    _begins.append(do)


def check() -> None:
    """Raise in a process that has lost the devices of the one that it was forked from.

    Raises:
        RuntimeError: it has.
    """
    if _is_cut_off:
        fail(
            RuntimeError,
            "xfunc was used in a process that was forked from one in which the devices had "
            "started; their threads are not in the fork, so it would wait for them forever",
            'start worker processes afresh (DataLoader(..., multiprocessing_context="spawn"), '
            'multiprocessing.get_context("spawn")), or before xfunc is first used; or call in '
            "them only torch and NumPy (xf.disable_jit).",
        )


def _begin() -> None:
    global _is_cut_off
    lock.renew()
    if not _is_cut_off and _had_started():
        _is_cut_off = True
        _end_at_once()
        for do in _begins:
            do()


def _had_started() -> bool:
    """Whether a device's client runs, whoever started it."""
    # Not by JAX's function, which takes a lock.
    has_jax = bool(getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None))
    return has_jax or is_torch_xla_running()


def is_torch_xla_running() -> bool:
    """Whether torch_xla's client runs, whoever started it."""
    torch_xla = sys.modules.get("torch_xla")
    return torch_xla is not None and torch_xla._XLAC._xla_runtime_is_initialized()


# NOTE [the end of a fork] When a process ends, the clients wait for their threads, or join them: in
# a fork that never ends, or is an abort. JAX's client is released by its exit function, or when
# Python clears its modules; torch_xla's by an exit function in C. So the fork unregisters JAX's
# function, keeps all objects from being freed, and registers a C function that ends the process
# before the earlier ones run.
def _end_at_once() -> None:
    """See NOTE [the end of a fork]."""
    clean_up = getattr(sys.modules.get("jax._src.api"), "clean_up", None)
    if clean_up is not None:
        atexit.unregister(clean_up)
    if hasattr(_libc, "on_exit"):  # glibc's; it is given the status
        _libc.on_exit(_libc._exit, None)
        _libc.__cxa_atexit(_libc.fflush, None, None)  # It is called first: the last is.


@atexit.register
def _keep_objects() -> None:
    """See NOTE [the end of a fork]; it is registered early, so it is called late."""
    if _is_cut_off:
        held = [list(vars(m).values()) for m in list(sys.modules.values())]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object([gc.get_objects(), held]))
        gc.freeze()


_libc = ctypes.CDLL(None)
os.register_at_fork(after_in_child=_begin)
