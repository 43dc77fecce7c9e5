"""The processes that run programs together, and the messages between them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from xfunc.backends import active
from xfunc.errors import TreeMismatchError, XfuncError, fail, shown

_T = TypeVar("_T")
_TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
_joined = False


def are_joined() -> bool:
    """Whether this process has joined others."""
    return _joined


def start(
    address: str | None,
    count: int | None,
    index: int | None,
    devices: int | Sequence[int] | None,
    timeout: int,
) -> None:
    """See `xfunc.distributed.initialize`."""
    global _joined
    from xfunc.backends.pjrt import client

    if _joined:
        fail(
            RuntimeError,
            "xf.distributed.initialize was called before in this process",
            "call it once, at the start of the program.",
        )
    _check(address, count, index)
    if address is None and all(name in os.environ for name in _TORCHRUN):
        for name in _TORCHRUN[1:]:
            if not os.environ[name].isdecimal():
                fail(
                    ValueError,
                    f"xf.distributed.initialize: {name} is {os.environ[name]!r} in the "
                    "environment, which is not a number",
                    "start the program by torchrun, which sets it, or unset it and pass "
                    'coordinator_address="host:port", num_processes and process_id.',
                )
        count, index = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        _check(None, count, index)
        if not distributed.is_initialized():
            _make_group_of_torchrun(count, index)
        # torchrun's own store listens on torchrun's port.
        address = _from_first(_free_address(os.environ["MASTER_ADDR"]) if index == 0 else None)
    client.join(address, count, index, devices, timeout)
    _joined = True
    active.use("pjrt")
    if not distributed.is_initialized():
        _make_group(address)


def _check(address: object, count: object, index: object) -> None:
    """Raise unless the arguments that are given are valid; JAX may end the process."""
    if address is not None:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            fail(
                ValueError if isinstance(address, str) else TypeError,
                f"xf.distributed.initialize: coordinator_address is {shown(address)}, which is "
                'not a "host:port"',
                'pass the name or address of process 0 and a free port there: "host0:1234".',
            )
    for name, value, least in (("num_processes", count, 1), ("process_id", index, 0)):
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            fail(
                ValueError if isinstance(value, int) else TypeError,
                f"xf.distributed.initialize: {name} is {shown(value)}, not a valid int",
                f"pass an int of at least {least}.",
            )
    if isinstance(count, int) and isinstance(index, int) and index >= count:
        fail(
            ValueError,
            f"xf.distributed.initialize: process_id is {index}, and num_processes is {count}",
            "number the processes from 0 to num_processes - 1.",
        )


def _make_group_of_torchrun(count: int, index: int) -> None:
    """Make torch's process group, also after ``torchrun`` has restarted the processes.

    In torch 2.9 its store still has the old processes' addresses, which gloo would connect to.
    """
    store, _, _ = next(rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = distributed.PrefixStore(f"xfunc/{attempt}", store)
    distributed.init_process_group("gloo", store=store, rank=index, world_size=count)


def _free_address(host: str) -> str:
    with socket.socket() as s:
        s.bind(("", 0))
        return f"{host}:{s.getsockname()[1]}"


def _from_first(value: object) -> Any:
    found = [value]
    distributed.broadcast_object_list(found, 0)
    return found[0]


def _make_group(address: str | None) -> None:
    """Give ``torch.distributed`` the same processes."""
    from xfunc.backends.pjrt import client

    where = active.runtime()
    count, index = where.process_count(), where.process_index()
    host = address.rpartition(":")[0] if address else socket.gethostbyname(socket.gethostname())
    store = None
    if index == 0:
        store = distributed.TCPStore(host, 0, count, is_master=True, wait_for_workers=False)
    host, port = client.from_first(f"{host}:{store.port if store else 0}").rsplit(":", 1)
    store = store or distributed.TCPStore(host, int(port), count, is_master=False)
    distributed.init_process_group("gloo", store=store, rank=index, world_size=count)


def stop() -> None:
    """See `xfunc.distributed.shutdown`."""
    global _joined
    from xfunc.backends.pjrt import client

    if not _joined:
        return
    _joined = False
    if distributed.is_initialized():
        distributed.destroy_process_group()
    client.leave()


def gathered(value: object) -> list[object]:
    """The value of each process, in the order of processes."""
    count = active.runtime().process_count()
    if count == 1:
        return [value]
    if not distributed.is_initialized():
        fail(
            RuntimeError,
            f"there are {count} processes, which have no way to talk to each other",
            "call xf.distributed.initialize() at the start, or on a TPU with torch_xla "
            "torch.distributed.init_process_group('gloo', init_method='xla://').",
        )
    found: list[object] = [None] * count
    distributed.all_gather_object(found, value)
    return found


def agreed(name: str, prepare: Callable[[], tuple[object, _T]]) -> _T:
    """What a function prepares, if all processes describe it alike.

    Otherwise all of them raise, also if only one of them failed: the others would wait forever.

    Args:
        name: of the user's function, for messages.
        prepare: returns a description, and a value.
    """
    try:
        said, value = prepare()
    except Exception as error:
        gathered((None, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"))
        raise
    everyones: list[Any] = gathered((said, None))
    for k, (other, failure) in enumerate(everyones):
        if failure is not None:
            fail(
                RuntimeError,
                f"{name} failed in process {k}: {failure}",
                "correct what that process does; the others stop with it.",
            )
        if other != said:
            fail(
                TreeMismatchError,
                f"{name} was given {said} in this process, and {other} in process {k}",
                "pass the same structures, shapes and dtypes in all of them.",
            )
    return value


def on_host(name: str, value: object) -> torch.Tensor:
    """A value as a tensor on the host."""
    try:
        found = torch.as_tensor(value)
    except XfuncError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        fail(
            TypeError,
            f"{name} was given {shown(value)} (a {type(value).__name__}), which cannot be made "
            f"a tensor: {error}",
            "pass tensors, arrays and numbers.",
        )
    return found.detach().cpu()
