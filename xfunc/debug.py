"""Help with finding out what xfunc does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from xfunc.cache import cache_of, trace_count
from xfunc.errors import report
from xfunc.locations import function_name


@contextlib.contextmanager
def assert_max_traces(fun: Callable[..., Any], n: int) -> Iterator[None]:
    """Fail with an AssertionError if `fun` is traced more than `n` times inside the block."""
    before = trace_count(fun)
    yield
    made = trace_count(fun) - before
    if made > n:
        raise AssertionError(
            report(
                f"{function_name(fun)} was traced {made} times, not at most {n}; the last time "
                f"because: {cache_of(fun).last_miss}",
                "make what changes between calls an array argument, or call with fewer shapes.",
            )
        )
