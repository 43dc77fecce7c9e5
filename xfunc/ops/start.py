"""`start`: loads the rules and kernels, and registers derivatives and batching rules."""

from __future__ import annotations

import importlib

from xfunc.ops import opmath, refused_dtypes, registry

_MODULES = (
    "elementwise arithmetic unary inverses reductions indexing fft views factorisations "
    "linalg lapack norms windows maxima composed scattered special incomplete_gamma "
    "bessel losses activations jvp_rules layers scaled out_of_bounds sorting".split()
)


def start() -> None:
    """Load all kernels and register them with the dispatcher."""
    for name in _MODULES:
        importlib.import_module(f"xfunc.ops.{name}")
    opmath.add()
    refused_dtypes.add()
    registry.install()
    importlib.import_module("xfunc.rules.all")
    importlib.import_module("xfunc.ops.fallback").install()
