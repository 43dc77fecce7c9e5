"""Tools for debugging traced functions: prints, callbacks, NaNs, infinities, trace counts."""

from __future__ import annotations

import builtins
import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from xfunc import tree
from xfunc.cache.programs import cache_of, trace_count
from xfunc.core import ambient
from xfunc.core.locations import function_name, user_location
from xfunc.core.wrappers import Wrapper
from xfunc.errors import ExecutionError, fail, format_error
from xfunc.tools import nans as _nans
from xfunc.trace import effects, tracing

__all__ = ["MaxTraces", "assert_max_traces", "callback", "check", "infs", "nans", "print"]


def callback(fun: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Call ``fun(*args, **kwargs)`` with the values that traced arguments have in each run.

    `fun` receives tensors on the CPU in place of traced ones, and everything else unchanged; its
    result is ignored, and its exceptions are raised from the call of the compiled function. It is
    called after the program has finished, once for each time that the program reaches the callback,
    in program order: inside `scan` step by step, under `vmap` example by example. Under `grad` it
    is called for the forward pass.

    Values are kept until the program ends: inside a loop, those of all its steps.

    Args:
        fun: the function to call.
        args: trees of tensors, traced or not, and anything else.
        kwargs: likewise.

    Raises:
        UnsupportedOpError: inside a branch, a while loop or a custom rule.

    Source: ``jax.debug.callback``.
    """
    leaves, structure = tree.flatten((args, kwargs))
    fixed = tuple((i, x) for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor))
    effects.emit(
        effects.Callback(fun, structure, fixed),
        [x for x in leaves if isinstance(x, torch.Tensor)],
    )


def print(fmt: str, *args: object, **kwargs: object) -> None:
    """Print ``fmt.format(*args, **kwargs)`` with the values that traced arguments have in each run.

    See `callback` for when and how often.

    Args:
        fmt: as for ``str.format``.
        args: the values to format: trees of tensors, traced or not, and any other objects.
        kwargs: likewise.

    Raises:
        ValueError: `fmt` does not fit the arguments.

    Source: ``jax.debug.print``.
    """
    _check_format("print", fmt, args, kwargs)
    callback(lambda *a, **k: builtins.print(fmt.format(*a, **k)), *args, **kwargs)


def check(pred: object, fmt: str, *args: object, **kwargs: object) -> None:
    """Raise an error with ``fmt.format(*args, **kwargs)`` in each run where `pred` is not true.

    It is raised from the call of the compiled function, after the program has finished; by
    `vmap`, for the first example that fails. See `callback` for when and how often it checks.

    Args:
        pred: a boolean array of any shape, all of which must be true; usually traced.
        fmt: a format string.
        args: the values to format; traced arrays have the values of the run.
        kwargs: likewise, by name.

    Returns:
        None.

    Raises:
        ExecutionError: from the call: `pred` was not true. It names the line of the check.
        ValueError: `fmt` does not fit the arguments.
        UnsupportedOpError: inside a branch, a while loop or a custom rule.

    Example::

        >>> @xf.jit
        ... def root(x):
        ...     xf.debug.check(x >= 0, "root of {}", x)
        ...     return x.sqrt()
        >>> root(torch.tensor(-1.0))
        Traceback (most recent call last):
        xfunc.errors.ExecutionError: a check failed: root of -1.0
          at ...

    Semantics: ``jax.experimental.checkify.check``, where the caller has to request the error.
    """
    _check_format("check", fmt, args, kwargs)
    place = user_location()

    def confirm(pred: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not torch.as_tensor(pred).all():
            fail(
                ExecutionError,
                f"a check failed: {fmt.format(*args, **kwargs)}",
                "the values are those of this call; xf.disable_jit() runs it step by step.",
                at=place,
            )

    callback(confirm, pred, args, kwargs)


def _check_format(name: str, fmt: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    try:
        fmt.format(*(_Any() for _ in args), **{name: _Any() for name in kwargs})
    except (IndexError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(
            format_error(
                f"debug.{name} was given {fmt!r}, which does not fit its arguments: {error!r}",
                "write {} for each positional argument and {name} for each named one.",
            )
        ) from None


class _Any:
    """A stand-in for any value in a format string."""

    def __format__(self, spec: str) -> str:
        return ""

    def __getattr__(self, name: str) -> _Any:
        return self

    def __getitem__(self, key: object) -> _Any:
        return self


def nans(enable: bool = True) -> contextlib.AbstractContextManager[None]:
    """Raise where a transformed function called in the block returns a NaN.

    The function is then run again on the CPU, operation by operation (`disable_jit`), to find the
    first operation that makes a NaN out of numbers; in a backward pass, the forward operation that
    it belongs to. Every call waits until its result has been checked. Other threads are not
    affected.

    Args:
        enable: False: not in this block, though it is inside of such a one.

    Returns:
        A context manager.

    Raises:
        FloatingPointError: names the result, the operation and the user's line.

    Semantics: ``jax.debug_nans``, which looks at intermediate values, too.
    """
    return _finding(_nans.NAN, enable)


def infs(enable: bool = True) -> contextlib.AbstractContextManager[None]:
    """Raise where a transformed function called in the block returns an infinity, like `nans`.

    Args:
        enable: False: not in this block, though it is inside of such a one.

    Returns:
        A context manager, which may be combined with that of `nans`.

    Raises:
        FloatingPointError: names the result, the operation and the user's line.

    Example::

        >>> with xf.debug.infs():
        ...     xf.jit(lambda x: 1 / x)(torch.zeros(()))
        Traceback (most recent call last):
        FloatingPointError: the result of <lambda> holds an infinity; reciprocal made the first
          at ...

    Semantics: ``jax.debug_infs``, which looks at intermediate values, too.
    """
    return _finding(_nans.INFINITY, enable)


@contextlib.contextmanager
def _finding(kind: _nans.Kind, enable: bool) -> Iterator[None]:
    before = ambient.inspector()
    others = before.kinds if isinstance(before, _nans.Finder) else ()
    kinds = tuple(k for k in others if k != kind) + (kind,) * enable
    ambient.inspect_results(_nans.Finder(kinds) if kinds else None)
    try:
        yield
    finally:
        ambient.inspect_results(before)


def assert_max_traces(fun: Callable[..., object], n: int) -> MaxTraces:
    """Raise an AssertionError if `fun` has been traced more than `n` times.

    The count is that of `trace_count`. It is checked at once; again at the end of the block, if
    used in a ``with`` statement; and the result can be called in place of `fun`
    (``xf.jit(xf.debug.assert_max_traces(f, 1))``): it raises if there is one trace too many.

    Args:
        fun: a function, or a transform of it.
        n: how many traces there may be.

    Returns:
        An object that is a context manager, and a function with the arguments and the results of
        `fun`.

    Source: ``chex.assert_max_traces``.
    """
    _check(fun, trace_count(fun), n)
    return MaxTraces(fun, n)


class MaxTraces(Wrapper):
    """The context manager of `assert_max_traces`."""

    def __init__(self, fun: Callable[..., object], n: int):
        self.fun, self.options, self._n, self._runs = fun, n, n, 0
        functools.update_wrapper(self, fun, updated=())

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if tracing.current() is not None:
            self._runs += 1
            _check(self.fun, self._runs, self._n)
        return self.fun(*args, **kwargs)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            _check(self.fun, trace_count(self.fun), self._n)


def _check(fun: Callable[..., object], made: int, n: int) -> None:
    if made > n:
        fail(
            AssertionError,
            f"{function_name(fun)} was traced {made} times, not at most {n}; the last time "
            f"because: {cache_of(fun).last_miss}",
            "make what changes between calls an array argument, or call with fewer shapes.",
            at=None,
        )
