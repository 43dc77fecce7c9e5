"""Process index and count, from arguments or the launcher's environment."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from xfunc.backends.rendezvous import MeetingPoint
from xfunc.errors import fail, short_repr

_TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


def find(
    address: str | None,
    count: int | None,
    index: int | None,
    devices: int | Sequence[int] | None,
    timeout: int,
) -> tuple[MeetingPoint, Sequence[int] | None]:
    """Where this process meets the others, and which GPUs are its own (None: all)."""
    from xfunc.backends.pjrt import client

    own = _own_devices(devices)
    if address is None and all(name in os.environ for name in _TORCHRUN):
        return _of_torchrun(count, index), own
    given = client.detected(address, count, index, own, timeout)
    address, count, index, found = given
    if address is None or count is None or index is None:
        names = "coordinator_address", "num_processes", "process_id"
        missing = [name for name, value in zip(names, given, strict=False) if value is None]
        fail(
            ValueError,
            f"xf.distributed.initialize was not given {' and '.join(missing)}, and no launcher "
            "that it knows has started this process",
            "start the program by torchrun, SLURM, Open MPI or on a Cloud TPU, or pass "
            'coordinator_address="host:port", num_processes and process_id.',
        )
    check(address, count, index)
    if own is None and found is not None:
        # JAX takes the process's number on its host, if it is alone there too.
        found = None if _is_alone() else [_as_visible(k) for k in found]
    return MeetingPoint(address, count, index), found


def _own_devices(given: int | Sequence[int] | None) -> Sequence[int] | None:
    """The GPUs of this process, as given, or one for each process of torchrun on a host."""
    from xfunc.backends.pjrt import client

    if given is not None:
        return [given] if isinstance(given, int) else given
    if ids := os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        if not all(each.strip().isdecimal() for each in ids.split(",")):
            fail(
                ValueError,
                f"xf.distributed.initialize: JAX_LOCAL_DEVICE_IDS is {ids!r} in the environment",
                'set it to the numbers of the GPUs of this process, as in "0,1", or unset it.',
            )
        return [int(each) for each in ids.split(",")]
    rank, beside = (os.environ.get(name, "") for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    is_one_of_several = rank.isdecimal() and beside.isdecimal() and int(beside) > 1
    if not is_one_of_several or client.kind_of_devices() != "accelerators":
        return None
    return [_as_visible(int(rank))]


def _is_alone() -> bool:
    """Whether SLURM or Open MPI has started a single process on each host."""
    if "OMPI_MCA_orte_hnp_uri" in os.environ:
        return os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1"
    return (
        re.fullmatch(r"1(\(x\d+\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")) is not None
    )


def _as_visible(number: int) -> int:
    """The number of a process's GPU; its launcher may have hidden those of the others."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return 0 if names and "," not in names else number


def _of_torchrun(given_count: int | None, given_index: int | None) -> MeetingPoint:
    host, port, index, count = (os.environ[name] for name in _TORCHRUN)
    for name in _TORCHRUN[1:]:
        if not os.environ[name].isdecimal():
            fail(
                ValueError,
                f"xf.distributed.initialize: {name} is {os.environ[name]!r} in the "
                "environment, which is not a number",
                "start the program by torchrun, which sets it, or unset it and pass "
                'coordinator_address="host:port", num_processes and process_id.',
            )
    point = (
        f"{host}:{port}",
        int(count) if given_count is None else given_count,
        int(index) if given_index is None else given_index,
    )
    check(*point)
    return MeetingPoint(
        *point,
        # After a restart, its store still has the entries of the old processes.
        attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        is_kept=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def check(
    address: object, count: object, index: object, devices: object = None, timeout: object = 1
) -> None:
    """Raise unless the arguments that are given are valid; JAX may end the process."""
    if address is not None:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            fail(
                ValueError if isinstance(address, str) else TypeError,
                f"xf.distributed.initialize: coordinator_address is {short_repr(address)}, "
                'which is not a "host:port"',
                'pass the name or address of process 0 and a free port there: "host0:1234".',
            )
    for name, value, least in (
        ("num_processes", count, 1),
        ("process_id", index, 0),
        ("initialization_timeout", timeout, 1),
        *(("local_device_ids", each, 0) for each in _listed(devices)),
    ):
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            fail(
                ValueError if isinstance(value, int) else TypeError,
                f"xf.distributed.initialize: {name} is {short_repr(value)}, not a valid int",
                f"pass an int of at least {least}.",
            )
    if isinstance(count, int) and isinstance(index, int) and index >= count:
        fail(
            ValueError,
            f"xf.distributed.initialize: process_id is {index}, and num_processes is {count}",
            "number the processes from 0 to num_processes - 1.",
        )


def _listed(devices: object) -> Sequence[object]:
    if isinstance(devices, str) or not isinstance(devices, Sequence):
        return [devices]
    return devices
