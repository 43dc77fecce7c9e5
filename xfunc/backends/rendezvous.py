"""The first meeting of the processes, which know the address of one of them.

NOTE [a meeting of our own]: JAX's client ends the process (SIGABRT) if there is no answer, or if
two processes have the same number. So the processes first meet at the address, in a torch store
that process 0 keeps there; JAX gets another port. Each writes a line about itself, and reads all
lines in the order of writing, so that all reach the same verdict. A process that gives up writes
its verdict as a line for the others.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from torch.distributed import DistNetworkError, PrefixStore, Store, TCPStore

from xfunc.errors import fail

_T = TypeVar("_T")
_EVERY = 0.1  # seconds from one look to the next
_LINGER = 10.0  # seconds for others to read the verdict, before the store is gone


@dataclasses.dataclass(frozen=True)
class Member:
    """The line of a process about itself.

    Attributes:
        index: its number.
        count: how many processes it believes there are.
        platform: that of its devices.
        where: its host and its process id there.
    """

    index: int
    count: int
    platform: str
    where: str

    def __str__(self) -> str:
        return f"process {self.index} ({self.where})"


@dataclasses.dataclass(frozen=True)
class MeetingPoint:
    """Where processes meet.

    Attributes:
        address: ``"host:port"``.
        count: number of processes.
        index: index of this process.
        attempt: name of the launch, for launchers that start the processes again.
        is_kept: whether the launcher keeps a store there, so that process 0 need not.
    """

    address: str
    count: int
    index: int
    attempt: str = "0"
    is_kept: bool = False

    @property
    def host(self) -> str:
        """The host of process 0."""
        return self.address.rpartition(":")[0]


def meet(point: MeetingPoint, own: Member, timeout: float) -> Store:
    """A store that all processes share, once all have arrived and are consistent.

    Raises:
        RuntimeError: in all of them, if there is no answer, or a process is missing or
            inconsistent.
    """
    deadline = time.monotonic() + timeout
    found, is_keeper = _store(point, own, deadline)
    book = _Book(PrefixStore(f"xfunc/{point.attempt}", found))
    try:
        number = book.write(dataclasses.asdict(own))
        try:
            verdict = _verdict(book, number, point, own, deadline, timeout)
        except BaseException as error:
            book.write({"verdict": f"{own} ended while it waited ({type(error).__name__})"})
            raise
        if verdict is not None:
            book.close(number, is_keeper)
            _refuse(verdict)
    except DistNetworkError:
        _refuse(f"process 0 has left {point.address}, before all had met there")
    return book.store


def _verdict(
    book: _Book, number: int, point: MeetingPoint, own: Member, deadline: float, timeout: float
) -> str | None:
    """Why the processes cannot run together; None: they can. It is the same in all of them."""
    members: list[Member] = []
    while len(members) < max(number, members[0].count if members else 1):
        line = book.read(len(members) + 1, deadline)
        if line is None:
            missing = sorted({*range(own.count)} - {m.index for m in members})
            verdict = (
                f"of {own.count} processes, {_listed(missing)} did not come to {point.address} "
                f"within {timeout:g} seconds; there were {_listed(members)}"
            )
            book.write({"verdict": verdict})
            return verdict
        if "verdict" in line:
            return line["verdict"]
        members.append(Member(**line))
        if why := mismatch(members):
            return why
    return None


def mismatch(members: Sequence[Member]) -> str | None:
    """Why the last of some processes does not fit the others, if it does not."""
    *others, last = members
    for other in others:
        if last.count != other.count:
            return (
                f"{other} was told that there are {other.count} processes, and {last} that there "
                f"are {last.count}"
            )
        if last.index == other.index:
            return f"{other.where} and {last.where} both say that they are process {last.index}"
        if last.platform != other.platform:
            return f"{other} runs on {other.platform}, and {last} on {last.platform}"
    return None


def _refuse(what: str) -> NoReturn:
    fail(
        RuntimeError,
        f"xf.distributed.initialize: {what}",
        "start as many processes as num_processes says, numbered from 0, all with the address of "
        "process 0, a free port there, and devices of one kind.",
    )


def _store(point: MeetingPoint, own: Member, deadline: float) -> tuple[Store, bool]:
    """The store of the meeting point, and whether it is kept in this process."""
    host, _, port = point.address.rpartition(":")
    where = host.strip("[]"), int(port)

    def connected(is_keeper: bool) -> Store:
        left = datetime.timedelta(seconds=max(1.0, deadline - time.monotonic()))
        return TCPStore(*where, is_master=is_keeper, wait_for_workers=False, timeout=left)

    taken = ""
    if own.index == 0 and not point.is_kept:
        try:
            return _within(deadline, lambda: connected(True)), True
        except (RuntimeError, TimeoutError) as error:
            # It may be that of another process 0, and then all will say so.
            taken = f", and it cannot listen there itself: {_short(error)}"
            deadline = min(deadline, time.monotonic() + _LINGER)
    try:
        _reach(where, deadline)
        return _within(deadline, lambda: connected(False)), False
    except (RuntimeError, OSError) as error:
        _refuse(f"no process 0 answers at {point.address} ({_short(error)}){taken}")


def _reach(where: tuple[str, int], deadline: float) -> None:
    """Wait until somebody listens at an address, which may have no meaning yet."""
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection(where, timeout=max(1.0, left)).close()
        except OSError:
            if left <= 0:
                raise
            time.sleep(min(_EVERY, left))
        else:
            return


def _within(deadline: float, f: Callable[[], _T]) -> _T:
    """The result of a function, if it returns by the deadline.

    torch 2.9 waits for ever for a store where something else listens, and Ctrl-C waits with it.
    """
    found: list[_T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(f())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="xfunc-connect", daemon=True)
    thread.start()
    thread.join(max(1.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError("what listens there does not answer as a process of xfunc")
    return found[0]


def _listed(them: Sequence[object]) -> str:
    more = f" and {len(them) - 8} more" if len(them) > 8 else ""
    return ", ".join(map(str, them[:8])) + more


def _short(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


class _Book:
    """Lines in a store, in an order that is the same for all who read them."""

    def __init__(self, store: Store):
        self.store = store

    def write(self, line: dict[str, Any]) -> int:
        """Add a line; returns its number, counted from 1."""
        number = self.store.add("lines", 1)
        self.store.set(f"line {number}", json.dumps(line))
        if "verdict" in line:
            self.store.set(f"read {number}", "")  # No reader belongs to it.
        return number

    def read(self, number: int, deadline: float) -> dict[str, Any] | None:
        """A line, when it is there; None after the deadline."""
        key = f"line {number}"
        return json.loads(self.store.get(key)) if self._comes(key, deadline) else None

    def close(self, number: int, is_keeper: bool) -> None:
        """Signal completion; the store's owner waits for every process."""
        self.store.set(f"read {number}", "")
        if is_keeper:
            deadline = time.monotonic() + _LINGER
            for other in range(1, self.store.add("lines", 0) + 1):
                self._comes(f"read {other}", deadline)

    def _comes(self, key: str, deadline: float) -> bool:
        # torch's own wait warns when its time is over, and Ctrl-C waits with it.
        while not self.store.check([key]):
            if time.monotonic() > deadline:
                return False
            time.sleep(_EVERY)
        return True
