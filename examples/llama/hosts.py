"""The processes of a run, which all run the same program, on one host or several."""

import contextlib
import glob
import os
import sys
from typing import Any, TypeVar

import torch
from torch import distributed

import xfunc as xf

from . import options
from .options import SettingError

_T = TypeVar("_T")
_COUNTS = {  # a variable with the number of processes, by one that its launcher sets
    "RANK": "WORLD_SIZE",  # torchrun
    "SLURM_STEP_NODELIST": "SLURM_NTASKS",  # srun; an sbatch script alone has no step
    "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_SIZE",  # mpirun
}


class ProcessesDifferError(SettingError):
    """The processes were started with different settings, or found different data."""


def join() -> None:
    """Connect the processes, if there are several.

    A program calls this before it asks for devices; later calls do nothing.
    """
    if distributed.is_initialized():
        return
    # A single process of torchrun gets the same bits as several: see README.md.
    count = _started()
    if count > 1 or (count and "RANK" in os.environ) or _is_in_job():
        xf.distributed.initialize()
    elif os.environ.get("XFUNC_BACKEND") != "pjrt":
        if xf.process_count() > 1:  # torch_xla has connected the hosts of a pod of TPUs.
            xf.distributed.initialize()
    elif _has_tpu():
        # JAX finds the hosts of a pod too, but must be told before it starts: asking it how many
        # there are would be too late. A ValueError says that nobody has started others.
        with contextlib.suppress(ValueError):
            xf.distributed.initialize()


def _started() -> int:
    """How many processes a launcher has started; 0 without a launcher."""
    counts = (os.environ.get(name, "") for has, name in _COUNTS.items() if has in os.environ)
    return max((int(count) for count in counts if count.isdecimal()), default=0)


def _is_in_job() -> bool:
    """Whether this is a pod of an indexed job of Kubernetes, which does not say how many there are.

    On TPUs torch_xla connects them.
    """
    names = {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"}
    return names <= os.environ.keys() and os.environ.get("PJRT_DEVICE") != "TPU"


def _has_tpu() -> bool:
    """Whether this host has TPUs, seen without starting them."""
    return bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))


def are_several() -> bool:
    """Whether other processes take part."""
    return distributed.is_initialized() and distributed.get_world_size() > 1


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def agree(wanted: bool) -> bool:
    """Whether `wanted` is true in any process."""
    if not distributed.is_initialized():
        return wanted
    votes = torch.tensor(int(wanted))
    distributed.all_reduce(votes, distributed.ReduceOp.MAX)
    return bool(votes)


def from_first(value: _T) -> _T:
    """The first process's value."""
    if not are_several():
        return value
    found = [value]
    distributed.broadcast_object_list(found, 0)
    return found[0]


def check_same_settings(run: Any) -> None:
    """Raise an error in all processes unless their settings of a run are the same."""
    for k, other in enumerate(said := _of_all(run)):
        if differ := " ".join(options.differing(other, said[0])):
            raise ProcessesDifferError(
                f"process {k} was started with {differ}, unlike process 0: give all of them the "
                "same settings"
            )


def check_same_data(state: dict[str, Any]) -> None:
    """Raise an error in all processes unless the `state` of their readers is the same."""
    for k, other in enumerate(said := _of_all(state)):
        differ = [key for key in said[0] if other.get(key) != said[0][key]]
        if differ or len(other) != len(said[0]):
            raise ProcessesDifferError(
                f"process {k} found different data from process 0 ({', '.join(differ)}): let all "
                "of them read the same files"
            )


def check_alone(what: str) -> None:
    """Raise an error if there are several processes."""
    if _started() > 1 or xf.process_count() > 1:
        raise SettingError(f"{what} runs as one process: start one, on one host")


def _of_all(value: _T) -> list[_T]:
    """The value of each process."""
    if not are_several():
        return [value]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


def fetch(x: Any) -> Any:
    """A tree of tensors on the host, gathered from all processes; every process must call it."""
    return xf.distributed.process_allgather(x) if are_several() else xf.device_get(x)


def leave() -> None:
    """Wait until all processes have finished, and disconnect."""
    xf.distributed.shutdown()


def failed(text: str, status: int) -> int:
    """Report an error that ends the program, and return the exit status.

    One of several processes exits here: it must not wait for the others, which end too.
    """
    if are_several():
        xf.distributed.abort(text, status)
    print(text, file=sys.stderr)
    return status
