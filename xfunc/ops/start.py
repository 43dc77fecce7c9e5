"""`start`: registers the kernels once torch_xla is loaded."""

from __future__ import annotations

import importlib

from xfunc.core import device
from xfunc.ops import opmath, ordered, registry

_MODULES = (
    "conversions elementwise arithmetic unary scalars reductions indexing fft views factorisations "
    "linalg lapack norms windows maxima composed scattered special incomplete_gamma "
    "bessel losses slopes pushed layers scaled iota bounded sorting".split()
)


def start() -> None:
    """Load all kernels and register them with the dispatcher."""
    for name in _MODULES:
        importlib.import_module(f"xfunc.ops.{name}")
    if device.TRACER == "torch_xla":  # else the fallback asks for each
        importlib.import_module("xfunc.ops.decomposed").add()
    opmath.add()
    ordered.add()
    registry.install()
    if device.TRACER == "own":
        importlib.import_module("xfunc.rules.all")
        importlib.import_module("xfunc.ops.fallback").install()
