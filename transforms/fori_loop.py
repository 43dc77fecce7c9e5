"""`fori_loop`: a loop over a range of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

import torch

from xfunc.core.avals import short
from xfunc.core.locations import described
from xfunc.core.types import ArrayLike
from xfunc.core.wrappers import Part
from xfunc.errors import fail, kind_of
from xfunc.stages.checks import Fun, check_callable, is_integer
from xfunc.torchlib.arrays import from_numpy
from xfunc.torchlib.eager import is_eager
from xfunc.trace import recorder, tracing
from xfunc.transforms.scan.scan import scan
from xfunc.transforms.while_loop import while_loop
from xfunc.tree import NumberTree, PyTree

R = TypeVar("R")


@overload  # See NOTE [types of lambdas] in `xfunc.tree`.
def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Callable[[torch.Tensor, PyTree], R],
    init_val: NumberTree,
    *,
    unroll: int | bool | None = None,
) -> R: ...
@overload
def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Callable[[torch.Tensor, R], R],
    init_val: R,
    *,
    unroll: int | bool | None = None,
) -> R: ...
@overload
def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Callable[[torch.Tensor, PyTree], R],
    init_val: PyTree,
    *,
    unroll: int | bool | None = None,
) -> R: ...
def fori_loop(
    lower: ArrayLike,
    upper: ArrayLike,
    body_fun: Callable[[torch.Tensor, PyTree], R],
    init_val: PyTree,
    *,
    unroll: int | bool | None = None,
) -> R:
    """Repeat ``value = body_fun(i, value)`` for i from `lower` up to, and without, `upper`.

    Means::

        def fori_loop(lower, upper, body_fun, init_val):
            value = init_val
            for i in range(lower, upper):
                value = body_fun(i, value)
            return value

    Python integers as bounds make a `scan`, which differentiates in both modes; traced bounds make
    a `while_loop`, which differentiates in forward mode.

    Args:
        lower: the first i: an integer, or an integer scalar tensor.
        upper: the i to stop before.
        body_fun: from i (an int64 scalar; with tensors as bounds, of their dtype) and the value to
            the next value, of the same structure, shapes and dtypes.
        init_val: the first value: a tree of tensors and numbers.
        unroll: how many steps one iteration of the compiled loop makes, if the bounds are Python
            integers; True: all.

    Returns:
        The last value: a tree like `init_val`, with tensors of the same shapes and dtypes.

    Raises:
        TypeError: a bound is not an integer.
        ValueError: `unroll` with a traced bound.
        TreeMismatchError: the body changes the value's structure, shapes or dtypes.

    Source: ``jax.lax.fori_loop``.
    """
    check_callable(body_fun, "fori_loop", "fori_loop(lower, upper, body_fun, init_val)")
    lo, hi = map(_bound, (lower, upper))
    for bound, which in ((lo, "lower"), (hi, "upper")):
        _check(bound, which, body_fun)
    if isinstance(lo, int) and isinstance(hi, int):
        where = recorder.device() if tracing.current() is not None and not is_eager() else None
        steps = torch.arange(lo, max(lo, hi), device=where)
        return scan(_Step(body_fun), init_val, steps, unroll=1 if unroll is None else unroll)[0]
    if unroll not in (None, False, 1):
        fail(
            ValueError,
            f"fori_loop of {described(body_fun)} has unroll={unroll!r}, but a traced bound",
            "leave unroll out, or make both bounds Python integers (static arguments).",
        )
    bounds = [x if isinstance(x, torch.Tensor) else None for x in (lo, hi)]
    dtype = next(b.dtype for b in bounds if b is not None)
    first, last = (
        torch.tensor(x, dtype=dtype) if b is None else b
        for x, b in zip((lo, hi), bounds, strict=True)
    )
    return while_loop(_in_range, _Counted(body_fun), (first, last.to(first.dtype), init_val))[2]


def _bound(x: object) -> object:
    return int(x) if is_integer(x) else from_numpy(x)


def _check(bound: object, which: str, body: Fun) -> None:
    if isinstance(bound, torch.Tensor):
        kind = bound.dtype
        ok = bound.ndim == 0 and not kind.is_floating_point and not kind.is_complex
        ok, what = ok and kind is not torch.bool, short(bound)
    else:
        ok, what = type(bound) is int, f"{bound!r} ({kind_of(bound)})"
    if not ok:
        fail(
            TypeError,
            f"fori_loop of {described(body)}: the {which} bound is {what}, not an integer",
            "pass a Python integer or an integer scalar tensor.",
        )


class _Step(Part):
    """The body as the body of a `scan` over the indices."""

    called = "fori_loop"

    def __init__(self, body: Fun):
        super().__init__(body, "fori")

    def __call__(self, value: PyTree, i: torch.Tensor) -> tuple[PyTree, None]:
        return self.fun(i, value), None


class _Counted(Part):
    """The body as the body of a `while_loop` that counts."""

    called = "fori_loop"

    def __init__(self, body: Fun):
        super().__init__(body, "fori while")

    def __call__(self, state: PyTree) -> tuple[torch.Tensor, torch.Tensor, PyTree]:
        i, hi, value = state
        return i + 1, hi, self.fun(i, value)


def _in_range(state: tuple[torch.Tensor, torch.Tensor, PyTree]) -> torch.Tensor:
    return state[0] < state[1]
