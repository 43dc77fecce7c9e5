"""The tracer that records programs, and the runtime they run on."""

from __future__ import annotations

import functools
import glob
import importlib
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from xfunc.backends import forks
from xfunc.backends.lock import lock
from xfunc.backends.protocol import Runtime
from xfunc.backends.tracer import Printer, Tracer
from xfunc.core import ambient, device
from xfunc.errors import fail, shown
from xfunc.hlo import Module, set_printer

NAMES = ("torch_xla", "pjrt")
AUTO = "auto"
R = TypeVar("R")
_runtime: Runtime | None = None
_kept: dict[int, Runtime] = {}  # by thread, in `staying_on`


# Imported by name at first use, because backends import this module. Programs are traced by
# the same tracer, whatever runs them.
@functools.cache
def tracer() -> Tracer:
    """The tracer that records programs."""
    forks.check()
    own = device.TRACER == "own"
    name = "xfunc.backends.own.tracer" if own else "xfunc.backends.torch_xla.tracer"
    return importlib.import_module(name).TRACER


@functools.cache
def printer() -> Printer:
    """The printer of modules."""
    package = "torch_xla" if device.TRACER == "torch_xla" else "pjrt"
    return importlib.import_module(f"xfunc.backends.{package}.printer").PRINTER


def _text_of(module: Module) -> str:
    return printer().hlo_text(module)


set_printer(_text_of)


def runtime() -> Runtime:
    """The runtime that programs run on; the first call chooses it.

    It stays the same for a thread that holds `xfunc.backends.lock.lock`, or is `staying_on` it.
    """
    if _kept and (kept := _kept.get(threading.get_ident())) is not None:
        return kept
    return _runtime or use(os.environ.get("XFUNC_BACKEND") or _default())


def chosen() -> str | None:
    """The name of the runtime, if it has been chosen."""
    return None if _runtime is None else _runtime.name


def asked_for() -> str | None:
    """The name of the runtime that has been chosen, or that the environment asks for."""
    name = chosen() or os.environ.get("XFUNC_BACKEND")
    return _for_this_machine() if name == AUTO else name


def staying_on(where: Runtime, run: Callable[..., R], *args: object) -> R:
    """``run(*args)``, in which this thread's programs run on a runtime that is not in use now."""
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


def _default() -> str:
    """torch_xla where it traces, too."""
    return NAMES[0] if NAMES[0] == device.TRACER else NAMES[1]


def _for_this_machine() -> str:
    """pjrt for a GPU that JAX has a plugin for; else the default."""
    plugins = map(device.is_installed, ("jax_cuda12_plugin", "jax_cuda13_plugin"))
    return NAMES[1] if glob.glob("/dev/nvidia[0-9]*") and any(plugins) else _default()


def use(name: str) -> Runtime:
    """Run programs on another runtime from here on.

    Raises:
        ValueError: there is none with that name.
        ImportError: a package that it needs is not installed.
        RuntimeError: this thread is tracing, or running a program; or see
            `xfunc.backends.forks.check`.
    """
    global _runtime
    forks.check()
    name = _for_this_machine() if name == AUTO else name
    if name not in NAMES:
        fail(
            ValueError,
            f"there is no backend {shown(name)}",
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
    found: Runtime = importlib.import_module(f"xfunc.backends.{name}.backend").make_runtime()
    with lock:  # A call in another thread ends on the runtime that it began on.
        _runtime = found
        lock.is_shared = may_share(found)
        ambient.note_backend(None if name == NAMES[0] else name)
    return found


def may_share(where: Runtime) -> bool:
    """Whether several threads may use a runtime, and trace, at once."""
    return device.TRACER == "own" and where.name != NAMES[0]


def _is_in_call() -> bool:
    """Whether this thread traces or runs something."""
    return lock.is_held_here() or lock.is_tracing_here() or threading.get_ident() in _kept


def _cut_off() -> None:
    """Forget the runtime and the tracer: asked for again, they are an error."""
    global _runtime
    _runtime = None
    _kept.clear()
    tracer.cache_clear()
    ambient.note_backend("of another process")  # No call is like the last one.


forks.at_start(_cut_off)
