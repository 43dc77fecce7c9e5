"""The runtime that programs run on."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from xfunc.backends import forks
from xfunc.backends.lock import lock
from xfunc.backends.pjrt import printer
from xfunc.backends.protocol import Runtime
from xfunc.core import ambient, device
from xfunc.errors import fail, short_repr
from xfunc.hlo import set_printer

NAMES = ("torch_xla", "pjrt")
AUTO = "auto"
_DEFAULT = "pjrt"
R = TypeVar("R")
_runtime: Runtime | None = None
_kept: dict[int, Runtime] = {}  # by thread, in `using_runtime`


set_printer(printer.hlo_text)


def runtime() -> Runtime:
    """The runtime that programs run on; the first call chooses it.

    It stays the same for a thread that holds `xfunc.backends.lock.lock`, or is `using_runtime` it.
    """
    if _kept and (kept := _kept.get(threading.get_ident())) is not None:
        return kept
    return _runtime or use(_unchosen())


def selected() -> str | None:
    """The name of the runtime, if it has been chosen."""
    return None if _runtime is None else _runtime.name


def requested() -> str | None:
    """The name of the runtime that has been chosen, or that the environment asks for."""
    name = selected() or os.environ.get("XFUNC_BACKEND")
    return _DEFAULT if name == AUTO else name


def using_runtime(where: Runtime, run: Callable[..., R], *args: object) -> R:
    """``run(*args)``, in which this thread's programs run on a runtime that may not be in use now.

    Raises:
        RuntimeError: see `xfunc.backends.forks.check`.
    """
    if where is not _runtime:  # In a fork there is none.
        forks.check()
    thread = threading.get_ident()
    before = _kept.get(thread)
    _kept[thread] = where
    try:
        return run(*args)
    finally:
        if before is None:
            _kept.pop(thread, None)  # In a fork it is missing.
        else:
            _kept[thread] = before


def _unchosen() -> str:
    """The default runtime."""
    name = os.environ.get("XFUNC_BACKEND") or AUTO
    return _DEFAULT if name == AUTO else name


def use(name: str) -> Runtime:
    """Run programs on the runtime of this name from now on.

    Raises:
        ValueError: there is none with that name.
        ImportError: a package that it needs is not installed.
        RuntimeError: this thread is tracing, or running a program; or see
            `xfunc.backends.forks.check`.
    """
    global _runtime
    forks.check()
    name = _DEFAULT if name == AUTO else name
    if name not in NAMES:
        fail(
            ValueError,
            f"there is no backend {short_repr(name)}",
            f"choose one of {', '.join(map(repr, NAMES))} and {AUTO!r}, with xf.config.set_backend "
            "or in the environment variable XFUNC_BACKEND.",
        )
    if name == NAMES[0] and not device.is_installed("torch_xla"):
        fail(
            ImportError,
            "the backend 'torch_xla' needs torch_xla, which is not installed",
            "pip install torch==2.9.0 torch_xla==2.9.0, or use the backend 'pjrt'.",
        )
    if _runtime is not None and _runtime.name != name and _is_in_call():
        fail(
            RuntimeError,
            f"the backend was to change to {name!r} inside of a call that runs on another",
            "call xf.config.set_backend outside of functions that xfunc traces or runs.",
        )
    result: Runtime = importlib.import_module(f"xfunc.backends.{name}.backend").make_runtime()
    with lock:  # A call in another thread ends on the runtime that it began on.
        _runtime = result
        lock.is_shared = may_share(result)
        # Functions traced before the first choice are for the default runtime.
        ambient.note_backend(None if name == _unchosen() else name)
    return result


def may_share(where: Runtime) -> bool:
    """Whether several threads may use a runtime at once."""
    return where.name != NAMES[0]


def _is_in_call() -> bool:
    """Whether this thread traces or runs something."""
    return lock.is_held_here() or lock.is_tracing_here() or threading.get_ident() in _kept


def _cut_off() -> None:
    """Forget the runtime in a fork, where choosing one again raises."""
    global _runtime
    _runtime = None
    _kept.clear()
    ambient.note_backend("of another process")  # No call is like the last one.


forks.at_start(_cut_off)
