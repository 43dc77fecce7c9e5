"""`fori_loop`: a loop over a range of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xfunc import runtime, tracing
from xfunc.avals import short
from xfunc.errors import report
from xfunc.literals import from_numpy
from xfunc.locations import function_name, user_location
from xfunc.staging import is_eager
from xfunc.wrappers import Part

from .common import Fun
from .scan import scan
from .while_loop import while_loop


def fori_loop(lo: Any, hi: Any, body: Fun, init: Any) -> Any:
    """Repeat ``value = body(i, value)`` for i from `lo` up to, and without, `hi`.

    Means::

        def fori_loop(lo, hi, body, init):
            value = init
            for i in range(lo, hi):
                value = body(i, value)
            return value

    Python integers as bounds make a `scan`, which differentiates in both modes; traced bounds make
    a `while_loop`, which differentiates in forward mode.

    Args:
        lo: the first i: an integer, or an integer scalar tensor.
        hi: the i to stop before.
        body: from i (an int64 scalar; with tensors as bounds, of their dtype) and the value to the
            next value, of the same structure, shapes and dtypes.
        init: the first value: a tree of tensors and numbers.

    Raises:
        TypeError: a bound is no integer.
        TreeMismatchError: the body changes the value's structure, shapes or dtypes.

    Source: ``jax.lax.fori_loop``.
    """
    lo, hi = (int(x) if isinstance(x, np.integer) else from_numpy(x) for x in (lo, hi))
    for bound, which in ((lo, "lower"), (hi, "upper")):
        _check(bound, which, body)
    if isinstance(lo, int) and isinstance(hi, int):
        where = runtime.device() if tracing.current() is not None and not is_eager() else None
        steps = torch.arange(lo, max(lo, hi), device=where)
        return scan(_Step(body), init, steps)[0]
    bounds = [x if isinstance(x, torch.Tensor) else None for x in (lo, hi)]
    dtype = next(b.dtype for b in bounds if b is not None)
    first, last = (
        torch.tensor(x, dtype=dtype) if b is None else b
        for x, b in zip((lo, hi), bounds, strict=True)
    )
    return while_loop(_in_range, _Counted(body), (first, last.to(first.dtype), init))[2]


def _check(bound: Any, which: str, body: Fun) -> None:
    if isinstance(bound, torch.Tensor):
        kind = bound.dtype
        ok = bound.ndim == 0 and not kind.is_floating_point and not kind.is_complex
        ok, what = ok and kind is not torch.bool, short(bound)
    else:
        ok, what = type(bound) is int, f"{bound!r} (a {type(bound).__name__})"
    if not ok:
        raise TypeError(
            report(
                f"fori_loop of {function_name(body)}: the {which} bound is {what}, no integer",
                "pass a Python integer or an integer scalar tensor.",
                at=user_location(),
            )
        )


class _Step(Part):
    """The body as the body of a `scan` over the indices."""

    def __init__(self, body: Fun):
        super().__init__(body, "fori")

    def __call__(self, value: Any, i: Any) -> tuple[Any, None]:
        return self.fun(i, value), None


class _Counted(Part):
    """The body as the body of a `while_loop` that counts."""

    def __init__(self, body: Fun):
        super().__init__(body, "fori while")

    def __call__(self, state: Any) -> Any:
        i, hi, value = state
        return i + 1, hi, self.fun(i, value)


def _in_range(state: Any) -> Any:
    return state[0] < state[1]
