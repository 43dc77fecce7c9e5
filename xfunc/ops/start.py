"""`start`: loads the rules and kernels, and registers derivatives and batching rules."""

from __future__ import annotations

import importlib

from xfunc.ops import opmath, ordered, registry

_MODULES = (
    "elementwise arithmetic unary reductions indexing fft views factorisations "
    "linalg lapack norms windows maxima composed scattered special incomplete_gamma "
    "bessel losses slopes pushed layers scaled bounded sorting".split()
)


def start() -> None:
    """Load all kernels and register them with the dispatcher."""
    for name in _MODULES:
        importlib.import_module(f"xfunc.ops.{name}")
    opmath.add()
    ordered.add()
    registry.install()
    importlib.import_module("xfunc.rules.all")
    importlib.import_module("xfunc.ops.fallback").install()
