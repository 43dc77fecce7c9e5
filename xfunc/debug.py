"""Help with finding out what xfunc does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from xfunc import tracing
from xfunc.cache import Wrapper, cache_of, trace_count
from xfunc.errors import report
from xfunc.locations import function_name


def assert_max_traces(fun: Callable[..., Any], n: int) -> MaxTraces:
    """Raise an AssertionError if `fun` has been traced more than `n` times.

    The count is that of `trace_count`. It is checked at once; again at the end of the block, if
    used in a ``with`` statement; and what is returned can be called in place of `fun`
    (``xf.jit(xf.debug.assert_max_traces(f, 1))``): it raises when it is traced once too often.

    Source: ``chex.assert_max_traces``.
    """
    _check(fun, trace_count(fun), n)
    return MaxTraces(fun, n)


class MaxTraces(Wrapper):
    """What `assert_max_traces` returns."""

    def __init__(self, fun: Callable[..., Any], n: int):
        self.fun, self.options, self._n, self._runs = fun, n, n, 0
        functools.update_wrapper(self, fun, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tracing.current() is not None:
            self._runs += 1
            _check(self.fun, self._runs, self._n)
        return self.fun(*args, **kwargs)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            _check(self.fun, trace_count(self.fun), self._n)


def _check(fun: Callable[..., Any], made: int, n: int) -> None:
    if made > n:
        raise AssertionError(
            report(
                f"{function_name(fun)} was traced {made} times, not at most {n}; the last time "
                f"because: {cache_of(fun).last_miss}",
                "make what changes between calls an array argument, or call with fewer shapes.",
            )
        )
