"""Help with finding out what xfunc does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from xfunc.cache import cache_of, trace_count
from xfunc.errors import report
from xfunc.locations import function_name


def assert_max_traces(fun: Callable[..., Any], n: int) -> contextlib.AbstractContextManager[None]:
    """Raise an AssertionError if `fun` has been traced more than `n` times.

    Checks at once; used in a ``with`` statement, again at the end of the block.
    """
    _check_traces(fun, n)
    return _checked(fun, n)


@contextlib.contextmanager
def _checked(fun: Callable[..., Any], n: int) -> Iterator[None]:
    yield
    _check_traces(fun, n)


def _check_traces(fun: Callable[..., Any], n: int) -> None:
    made = trace_count(fun)
    if made > n:
        raise AssertionError(
            report(
                f"{function_name(fun)} was traced {made} times, not at most {n}; the last time "
                f"because: {cache_of(fun).last_miss}",
                "make what changes between calls an array argument, or call with fewer shapes.",
            )
        )
