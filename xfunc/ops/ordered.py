"""The order of NaN; and operations on dtypes on which XLA ends the process, which are refused.

Complex numbers have no order ("No min value for given type", "unhandled direction for conversion to
Comparison: .LT.C64"), and booleans no products with a sum beside. Eager torch refuses most of them
too; here it is by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xfunc.errors import UnsupportedOpError, fail
from xfunc.ops.registry import Kernel, surround

_ORDERING = """
    _softmax _log_softmax hardswish hardsigmoid hardtanh relu leaky_relu threshold
    max_pool2d_with_indices max_pool3d_with_indices max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward max_unpool2d max_unpool3d adaptive_max_pool2d
    adaptive_max_pool3d gcd lcm maximum minimum amax amin topk sort sort.stable kthvalue
    cummax cummin
""".split()
_MEANS = ("scatter_reduce.two", "index_reduce")
_SIGNED = ("copysign.Tensor", "copysign.Scalar")
_PRODUCTS = ("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "addbmm", "baddbmm", "_trilinear")
_CONVERSIONS = {True: "x.real, x.imag, x.abs()", False: "x.float()"}


def add() -> None:
    """Put the refusals around the kernels that there are."""
    for name in _ORDERING:
        surround(name, _refusing(_first_complex, "complex numbers have no order"), _no_complex)
    for name in _MEANS:
        surround(
            name,
            _refusing(_complex_mean, "means of complex numbers have no lowering to XLA"),
            _no_complex,
        )
    for name in _SIGNED:
        surround(name, _refusing(_first_complex, "complex numbers have no sign"), _no_complex)
    for name in _PRODUCTS:
        surround(
            name, _refusing(_first_bool, "matrix products of booleans are not defined"), _no_bool
        )
    for name in ("sort", "sort.stable", "topk", "kthvalue"):
        surround(name, _with_one_nan, lambda x, *rest: not x.is_floating_point())


def _with_one_nan(name: str, function: Kernel) -> Kernel:
    """XLA takes a NaN whose sign is set, as x86 processors make them, for the least of numbers."""

    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        x = torch.where(x.isnan(), torch.nan, x) if x.is_floating_point() else x
        return function(x, *args, **kwargs)

    return run


def _first_complex(*args: Any) -> torch.dtype | None:
    dtypes = (a.dtype for a in args if isinstance(a, torch.Tensor))
    return next((d for d in dtypes if d.is_complex), None)


def _first_bool(*args: Any) -> torch.dtype | None:
    dtypes = (a.dtype for a in args if isinstance(a, torch.Tensor))
    return next((d for d in dtypes if d is torch.bool), None)


def _complex_mean(*args: Any) -> torch.dtype | None:
    return _first_complex(*args) if "mean" in args[-2:] else None


def _no_complex(*args: Any) -> bool:
    return _first_complex(*args) is None


def _no_bool(*args: Any) -> bool:
    return _first_bool(*args) is None


def _refusing(
    refused: Callable[..., torch.dtype | None], why: str
) -> Callable[[str, Kernel], Kernel]:
    def decorate(name: str, function: Kernel) -> Kernel:
        def run(*args: Any, **kwargs: Any) -> Any:
            dtype = refused(*args)
            if dtype is None:
                return function(*args, **kwargs)
            fail(
                UnsupportedOpError,
                f"torch.{name.strip('_').partition('.')[0]} was given "
                f"{str(dtype).removeprefix('torch.')}: {why}",
                f"convert to a floating dtype ({_CONVERSIONS[dtype.is_complex]}).",
            )

        return run

    return decorate
