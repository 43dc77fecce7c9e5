"""A function called in several processes, whose results come in the order of its arguments.

The processes are programs of their own, which import this package and no device's runtime: a fork
of a process with threads may hang, and multiprocessing's other ways run the caller's main module
again. A process ends when its standard input does, and so with the caller, however that ends.
"""

import contextlib
import itertools
import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .documents import DataError

T = TypeVar("T")
R = TypeVar("R")
_AHEAD = 2  # items read for each process
_ENDED = (EOFError, OSError, pickle.UnpicklingError)  # of a pipe whose other end is gone


class Workers(contextlib.ExitStack):
    """Processes that end with the ``with`` block.

    Args:
        count: how many; with one, functions are called in this process.
    """

    def __init__(self, count: int):
        super().__init__()
        self.count = count

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """What `function` returns for each item; it and the items are pickled.

        An error of `function`, or of `items`, is raised after all results before it.
        """
        if self.count == 1:
            yield from map(function, items)
            return
        pool = ThreadPoolExecutor(self.count, "worker")
        self.callback(pool.shutdown, cancel_futures=True)
        free = queue.SimpleQueue[_Worker]()
        for _ in range(self.count):
            worker = _Worker(function)
            self.callback(worker.kill)  # before the threads are waited for
            free.put(worker)
        fault: Exception | None = None

        def call(item: T) -> R:
            worker = free.get()
            try:
                return worker(item)
            finally:
                free.put(worker)

        def submitted() -> Iterator[Future[R]]:
            nonlocal fault
            try:
                for item in items:
                    yield pool.submit(call, item)
            except Exception as error:
                fault = error

        coming, waiting = submitted(), deque[Future[R]]()
        while True:
            waiting.extend(itertools.islice(coming, _AHEAD * self.count - len(waiting)))
            if not waiting:
                break
            yield waiting.popleft().result()
        self.close()
        if fault is not None:
            raise fault


class _Worker:
    """A process that calls a function."""

    def __init__(self, function: Callable[[Any], Any]):
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        # One thread each, as there is a process for each CPU.
        env = os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # In a group of its own, without the caller's Ctrl-C.
            [sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=env, process_group=0
        )
        self._function: bytes = pickle.dumps(function)

    def __call__(self, item: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(self._function + pickle.dumps(item))
            self._process.stdin.flush()
            returned, value = pickle.load(self._process.stdout)
        except _ENDED as error:
            raise DataError(
                f"a process that makes tokens ended, with status {self._process.wait()}: if memory "
                "was short, use fewer data.processes"
            ) from error
        self._function = b""  # It is sent once.
        if not returned:
            raise value
        return value

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def serve() -> None:
    """Call a function that comes from standard input with each of the items that follow it."""
    given, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What the function prints is no answer.
    with contextlib.suppress(EOFError, BrokenPipeError):
        function = pickle.load(given)
        while True:
            item = pickle.load(given)
            try:
                answer = True, function(item)
            except Exception as error:
                answer = False, error
            pickle.dump(answer, answers)
            answers.flush()
