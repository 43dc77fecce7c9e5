"""The processes that run programs together, and the messages between them."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore

from xfunc.backends import active, cluster_env, failures
from xfunc.backends.placement import is_on_devices
from xfunc.backends.rendezvous import Member, meet, mismatch
from xfunc.errors import TreeMismatchError, XfuncError, fail, kind_of, short_repr

_T = TypeVar("_T")
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
    cluster_env.check(address, count, index, devices, timeout)
    if active.requested() == "torch_xla" and active.runtime().platform() == "tpu":
        _start_on_pod()
        _joined = True
        return
    place, own_devices = cluster_env.find(address, count, index, devices, timeout)
    client.check_not_started()
    count, index = place.count, place.index
    where = f"{socket.gethostname()}, pid {os.getpid()}"
    own = Member(index, count, client.kind_of_devices(), where)
    is_ours = not distributed.is_initialized()
    store = meet(place, own, timeout) if is_ours else _store_of_group(own, place.host)
    try:
        if is_ours:
            group = PrefixStore("group", store)
            distributed.init_process_group("gloo", store=group, rank=index, world_size=count)
        failures.begin(store, index, count)
        coordinator = _from_first(_free_address(place.host) if index == 0 else None)
        client.join(coordinator, count, index, own_devices, timeout)
        active.use("pjrt")
        if (found := active.runtime().process_count()) != count:
            fail(
                RuntimeError,
                f"xf.distributed.initialize: JAX connected the devices of {found} processes, and "
                f"there are {count}",
                "use devices whose PJRT plugin supports several processes.",
            )
    except Exception as error:
        failures.told(error)
        client.leave()
        if is_ours and distributed.is_initialized():
            distributed.destroy_process_group()
        raise
    _joined = True


def _start_on_pod() -> None:
    """Use the hosts of a TPU pod as torch_xla has connected them."""
    where = active.runtime()
    if where.process_count() == 1:
        return
    if not distributed.is_initialized():
        importlib.import_module("torch_xla.distributed.xla_backend")  # It knows xla://.

        distributed.init_process_group("gloo", init_method="xla://")
    host = socket.gethostname()
    own = Member(where.process_index(), where.process_count(), "accelerators", host)
    first = _from_first(socket.gethostbyname(host))
    failures.begin(_store_of_group(own, first), own.index, own.count)


def _store_of_group(own: Member, host: str) -> Store:
    """A store that the processes of torch's process group share; `host` is that of process 0."""
    members: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(members, own)
    for k, each in enumerate(members):
        wrong = mismatch(members[: k + 1])
        if each.index != k or each.count != len(members):
            wrong = f"process {k} of {len(members)} of torch's process group was told that it is "
            wrong += f"{each} of {each.count}"
        if wrong:
            fail(
                RuntimeError,
                f"xf.distributed.initialize: {wrong}",
                "give process_id and num_processes the rank and world size of the group.",
            )
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False) if own.index == 0 else None
    port = _from_first(store.port if store else None)
    return store or TCPStore(host, port, is_master=False)


def _free_address(host: str) -> str:
    with socket.socket() as s:
        s.bind(("", 0))
        return f"{host}:{s.getsockname()[1]}"


def _from_first(value: object) -> Any:
    found = [value]
    distributed.broadcast_object_list(found, 0)
    return found[0]


def stop() -> None:
    """See `xfunc.distributed.shutdown`."""
    global _joined
    from xfunc.backends.pjrt import client

    if not _joined:
        return
    _joined = False
    failures.end()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    client.leave()


def gathered(value: object, count: int | None = None) -> list[object]:
    """The value of each process, in the order of processes.

    `count` is their number; by default that of the processes that run programs together.
    """
    count = active.runtime().process_count() if count is None else count
    if count == 1:
        return [value]
    if not distributed.is_initialized():
        fail(
            RuntimeError,
            f"there are {count} processes, which have no way to talk to each other",
            "call xf.distributed.initialize() at the start, or on a TPU with torch_xla "
            "torch.distributed.init_process_group('gloo', init_method='xla://').",
        )
    result: list[object] = [None] * count
    distributed.all_gather_object(result, value)
    return result


def agreed(
    name: str,
    prepare: Callable[[], tuple[object, _T]],
    count: int | None = None,
    differ: Callable[[str, Any, Any, int], NoReturn] | None = None,
) -> _T:
    """The value that a function prepares, if all processes describe it alike.

    Otherwise all of them raise, also if only one of them failed: the others would wait forever.

    Args:
        name: of the user's function, for messages.
        prepare: returns a description, and a value.
        count: as for `gathered`.
        differ: raises if the descriptions differ, given the name, that of this process and that of
            another, and the number of the other; by default, as if they described arguments.
    """
    try:
        said, value = prepare()
    except Exception as error:
        failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        gathered((name, None, failure), count)
        raise
    everyones: list[Any] = gathered((name, said, None), count)
    for k, (other, _, _) in enumerate(everyones):
        if other != name:
            fail(
                RuntimeError,
                f"{name} was called in this process, and {other} in process {k}",
                "call the same functions in the same order in all processes.",
            )
    for k, (_, _, failure) in enumerate(everyones):
        if failure is not None:
            fail(
                RuntimeError,
                f"{name} failed in process {k}: {failure}",
                "correct what that process does; the others stop with it.",
            )
    for k, (_, other, _) in enumerate(everyones):
        if other != said:
            (differ or _given_others)(name, said, other, k)
    return value


def _given_others(name: str, said: Any, other: Any, k: int) -> NoReturn:
    own, its = _where_they_differ(said, other)
    fail(
        TreeMismatchError,
        f"{name} was given {own} in this process, and {its} in process {k}",
        "pass the same structures, shapes, dtypes and shardings in all of them.",
    )


def _where_they_differ(said: Any, other: Any) -> tuple[object, object]:
    """Two descriptions, of dicts the first item that differs."""
    if not (isinstance(said, dict) and isinstance(other, dict)):
        return said, other
    keys = [*said, *(key for key in other if key not in said)]
    key = next(key for key in keys if said.get(key) != other.get(key))
    own, its = (f"{key}: {d[key]}" if key in d else f"no {key}" for d in (said, other))
    return own, its


def is_shared(x: torch.Tensor) -> bool:
    """Whether a tensor is on the devices of several processes, which may hold parts of it."""
    return is_on_devices(x) and active.runtime().process_count() > 1


def whole(x: torch.Tensor) -> torch.Tensor:
    """The value of a tensor on the host. All processes that share it must call this."""
    x = x.detach()
    return (active.runtime().put(x, None) if is_shared(x) else x).cpu()


def on_host(name: str, value: object) -> torch.Tensor:
    """A value as a tensor on the host."""
    try:
        found = torch.as_tensor(value)
    except XfuncError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        fail(
            TypeError,
            f"{name} was given {short_repr(value)} ({kind_of(value)}), which cannot be made "
            f"a tensor: {error}",
            "pass tensors, arrays and numbers.",
        )
    if found.layout is not torch.strided or found.is_quantized:
        kind = "quantized" if found.is_quantized else f"of layout {found.layout}"
        fail(
            TypeError,
            f"{name} was given a tensor of shape {tuple(found.shape)} that is {kind}",
            "pass ordinary tensors: x.to_dense(), or x.dequantize().",
        )
    return found.detach().cpu()
