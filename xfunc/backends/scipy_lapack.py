"""The LAPACK and BLAS routines in scipy's library, called without a wrapper.

scipy exports their addresses for Cython. A call takes only addresses, and releases the GIL.
Matrices are stored column by column.

NOTE [threads of OpenBLAS]: it wakes its threads even for matrices too small to benefit, and waits
milliseconds for them when other processes keep the CPUs busy. The number of threads is set for the
whole process.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

import torch

_LETTERS = {torch.float32: "s", torch.float64: "d", torch.complex64: "c", torch.complex128: "z"}
_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _module(name: str) -> Any:
    return importlib.import_module(f"scipy.linalg.{name}")  # takes 0.2 s


@functools.cache
def routine(name: str, dtype: torch.dtype) -> Callable[..., None]:
    """A routine for matrices of a dtype.

    Args:
        name: without the letter for the dtype.
        dtype: one of the four that LAPACK supports.
    """
    blas, lapack = map(_module, ("cython_blas", "cython_lapack"))
    found = {**blas.__pyx_capi__, **lapack.__pyx_capi__}
    capsule = found[_LETTERS[dtype] + name]
    signature = _name(capsule)
    types = [ctypes.c_void_p] * (signature.count(b",") + 1)
    return ctypes.CFUNCTYPE(None, *types)(_pointer(capsule, signature))


def load() -> None:
    """Load scipy's routines ahead of a program: its threads would load them concurrently."""
    routine("potrf", torch.float32)
    _thread_count()


class _OneThread:
    """A block in which OpenBLAS uses no other threads; see NOTE [threads of OpenBLAS]."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside, self._before = 0, 1

    def __enter__(self) -> None:
        count, put = _thread_count()
        with self._lock:
            if not self._inside:
                self._before = count()
                put(1)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        _, put = _thread_count()
        with self._lock:
            self._inside -= 1
            if not self._inside:
                put(self._before)


one_thread = _OneThread()


@functools.cache
def _thread_count() -> tuple[Callable[[], int], Callable[[int], object]]:
    """Functions that get and set OpenBLAS's number of threads; no-ops without OpenBLAS."""
    library = ctypes.PyDLL(_module("cython_lapack").__file__)  # and the libraries it links
    for prefix in ("scipy_openblas", "openblas"):
        if hasattr(library, f"{prefix}_set_num_threads"):
            put = getattr(library, f"{prefix}_set_num_threads")
            put.restype = None
            return getattr(library, f"{prefix}_get_num_threads"), put
    return (lambda: 1), (lambda _: None)


def number(value: int) -> object:
    """The address of an integer, as an argument."""
    return ctypes.byref(ctypes.c_int(value))


@functools.cache
def scalar(value: int, dtype: torch.dtype) -> object:
    """A number of a dtype, as an argument.

    Not its address: threads that ask at once each get one, and only the last is kept.
    """
    return ctypes.create_string_buffer(torch.tensor(value, dtype=dtype).numpy().tobytes(), 16)
