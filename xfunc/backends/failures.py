"""The end of one of several processes after an error, so that the others do not wait for it.

NOTE [errors end a process at once]: Python's own clean-up waits for threads, and JAX's for the
other processes, which wait for this one: for five minutes, with JAX 0.7.1. So an uncaught error is
printed and sent to the others, and the process exits without clean-up, as with MPI_Abort.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from types import TracebackType
from typing import NoReturn

from torch.distributed import PrefixStore, Store

from xfunc.backends import calls, exit_status
from xfunc.backends.heartbeat import Heartbeat

LOST = os.EX_UNAVAILABLE  # the exit status of a process that has lost another one
_PATIENCE = 300.0  # seconds at exit, as JAX's own clean-up waits
_SHORT = 15.0  # the same, where the status says that something is wrong

_watch: Heartbeat | None = None
_before = sys.excepthook
_last: object = None  # the last uncaught error before


def begin(store: Store, index: int, count: int) -> None:
    """Let the processes watch each other, if there are several."""
    global _watch, _before, _last
    if count == 1:
        return
    _last = getattr(sys, "last_value", None)
    calls.reset()
    _watch = Heartbeat(PrefixStore("watch", store), index, count, _lost)
    _before, sys.excepthook = sys.excepthook, _uncaught
    exit_status.begin()
    atexit.register(_at_exit)


def end() -> None:
    """Wait until all processes have come to their end, and stop watching."""
    if watch := _stopped():
        watch.leave()


def _at_exit() -> None:
    """Wait for the others, but not for ever: they may be waiting for this process."""
    watch, status = _stopped(), exit_status.status()
    error = getattr(sys, "last_value", None)  # It may have another hook.
    if watch is not None and error is not _last and not _is_interactive():
        _exit(watch.index, watch.fail(text := _line(error)), text, 1)
    patience = _SHORT if status else _PATIENCE
    if watch is None or watch.leave(patience):
        return
    if status:
        text = f"it exited with status {status}, and others did not end within {patience:g} seconds"
        _exit(watch.index, watch.fail(text), text, status)
    news = watch.fail(f"it came to its end {patience:g} seconds ago, and others did not")
    _lost(watch.index, news or f"the others did not end within {patience:g} seconds")


def told(error: BaseException) -> None:
    """Report an error to the others, if there is a heartbeat, and stop the heartbeat."""
    if watch := _stopped():
        watch.fail(_line(error))


def abort(message: object, status: int) -> NoReturn:
    """See `xfunc.distributed.abort`."""
    text = message if isinstance(message, str) else _line(message)
    watch = _stopped()
    if watch is None:
        _say(text)
        raise SystemExit(status)
    news = watch.fail(text)
    if not _is_same(news, text):
        _say(f"process {watch.index}: {text}")
    _exit(watch.index, news, text, status)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The hook for uncaught errors."""
    watch = None if _is_interactive() else _stopped()
    if watch is None:
        _before(kind, error, trace)
        return
    text = _line(error)
    news = watch.fail(text)
    if not _is_same(news, text):
        with contextlib.suppress(Exception):
            _before(kind, error, trace)
    if issubclass(kind, KeyboardInterrupt):  # It ends as without the hook: by the signal.
        _flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    _exit(watch.index, news, text, 1)


def _stopped() -> Heartbeat | None:
    """Detach and return this process's heartbeat."""
    global _watch
    watch = _watch
    if watch is None or watch.pid != os.getpid():  # A fork is no process of the program.
        return None
    _watch = None
    atexit.unregister(_at_exit)
    exit_status.end()
    if sys.excepthook is _uncaught:
        sys.excepthook = _before
    return watch


def _is_interactive() -> bool:
    """Whether the program continues after an error."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _line(error: object) -> str:
    """One-line summary of an exception."""
    text = "its text cannot be shown"
    with contextlib.suppress(Exception):
        text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_same(news: str | None, text: str) -> bool:
    """Whether the same has happened in all processes: the first one reports it."""
    said = (news or "").partition(" failed: ")[2]
    return bool(said) and text.startswith(said)


def _lost(index: int, news: str) -> NoReturn:
    """End this process, because another one has."""
    _say(f"error: {news}. This process, {index}, ends too: restart all of them")
    _end(LOST)


def _exit(index: int, news: str | None, text: str, status: int) -> NoReturn:
    if news is not None and not _is_same(news, text):
        _lost(index, news)
    _end(status)


def _say(text: str) -> None:
    with contextlib.suppress(Exception):  # The pipe may be closed, or the disk full.
        print(text, file=sys.stderr)


def _end(status: int) -> NoReturn:
    """End this process without clean-up, even if its output cannot be flushed."""
    try:
        _flush()
    finally:
        os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
