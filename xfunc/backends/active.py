"""Which runtime programs run on."""

from __future__ import annotations

import importlib
import os

from xfunc.backends.protocol import Runtime
from xfunc.core import ambient
from xfunc.errors import fail, shown

NAMES = ("torch_xla", "pjrt")
_runtime: Runtime | None = None


def runtime() -> Runtime:
    """The runtime that programs run on; the first call chooses it."""
    return _runtime or use(os.environ.get("XFUNC_BACKEND") or "torch_xla")


def use(name: str) -> Runtime:
    """Run programs on another runtime from here on.

    Raises:
        ValueError: there is none of that name.
        ImportError: what it needs is not installed.
    """
    global _runtime
    if name not in NAMES:
        fail(
            ValueError,
            f"there is no backend {shown(name)}",
            f"choose one of {', '.join(map(repr, NAMES))}, with xf.config.set_backend or in the "
            "environment variable XFUNC_BACKEND.",
        )
    found: Runtime = importlib.import_module(f"xfunc.backends.{name}.backend").make_runtime()
    _runtime = found
    ambient.note_backend(None if name == NAMES[0] else name)
    return found
