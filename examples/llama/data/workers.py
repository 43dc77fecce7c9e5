"""A function called in several processes, whose results come in the order of its arguments."""

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from .documents import DataError

T = TypeVar("T")
R = TypeVar("R")
_AHEAD = 2  # items read for each process


def map_in_processes(count: int, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """What `function` returns for each item, like the builtin `map`; all of these are pickled.

    An error of `function`, or of `items`, is raised after all results before it.
    """
    fault: Exception | None = None

    def submitted() -> Iterator[Future[R]]:
        nonlocal fault
        try:
            for item in items:
                yield pool.submit(_call, item)
        except Exception as error:
            fault = error

    # Not forked: a fork of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, _begin, (function,)) as pool:
        coming, waiting = submitted(), deque[Future[R]]()
        try:
            while True:
                waiting.extend(itertools.islice(coming, _AHEAD * count - len(waiting)))
                if not waiting:
                    break
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise DataError(
                "a process that makes tokens ended: if memory was short, use fewer "
                "data.processes; if this is a program of your own, let it begin below "
                "`if __name__ == '__main__':`"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)
    if fault is not None:
        raise fault


_function: Callable[[Any], Any]


def _begin(function: Callable[[Any], Any]) -> None:
    """Prepare a process: it is given the function once, and ends with the caller's alone."""
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One thread each, as there is a process for each CPU.
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    caller = multiprocessing.parent_process()
    assert caller is not None
    threading.Thread(target=lambda: (caller.join(), os._exit(1)), daemon=True).start()


def _call(item: Any) -> Any:
    return _function(item)
