"""The processes of a run, which all run the same program, on one host or several."""

import contextlib
import glob
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed

import xfunc as xf

from .. import options
from ..files import samples
from ..options import SettingError

_T = TypeVar("_T")
_COUNTS = {  # a variable with the number of processes, by one that its launcher sets
    "RANK": "WORLD_SIZE",  # torchrun
    "SLURM_STEP_NODELIST": "SLURM_NTASKS",  # srun; an sbatch script alone has no step
    "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_SIZE",  # mpirun
}

SAME_FILES = "let all processes read the same files"
_SAME = "give all processes the same settings and arguments"
_OF_SETTINGS = ("config", "settings")  # arguments that are settings
_SHOWN, _LONG = 3, 80  # differences, and characters of a value, in a message


class ProcessesDifferError(SettingError):
    """The processes were given different settings or arguments, or found different files."""


def join() -> None:
    """Connect the processes, if there are several.

    A program calls this before it asks for devices; later calls do nothing.
    """
    if distributed.is_initialized():
        return
    # A single process of torchrun gets the same bits as several: see pods.md.
    count = _started()
    if count > 1 or (count and "RANK" in os.environ) or _is_in_job():
        xf.distributed.initialize()
    elif os.environ.get("XFUNC_BACKEND") == "torch_xla":
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
    """Whether this is a pod of an indexed job of Kubernetes, which torch_xla does not connect."""
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


def check_same(own: Mapping[str, str | None], repair: str) -> None:
    """Raise an error that ends with `repair` unless all processes say the same.

    Texts are by what they are; None is as if it were not there. The error, which names what
    differs, is the same in all processes, which end together and print it once.
    """
    first, *others = _of_all(dict(own))

    def shown(text: str | None) -> str:
        text = "absent" if text is None else text
        return text if len(text) <= _LONG else f"{text[:_LONG]}..."

    wrong = [
        f"{key} is {shown(first.get(key))} in process 0, and {shown(one.get(key))} in process {k}"
        for k, one in enumerate(others, 1)
        for key in {**first, **one}
        if first.get(key) != one.get(key)
    ]
    if wrong:
        raise ProcessesDifferError(f"{'; '.join(wrong[:_SHOWN])}: {repair}")


def check_same_arguments(command: str, arguments: Mapping[str, Any]) -> None:
    """Raise an error in all processes unless they run the same command, with the same arguments.

    Settings are left to `check_same_settings`, wherever and in whatever order they are given.
    """
    check_same({"the command": command}, _SAME)  # Others have other arguments.
    own: dict[str, str | None] = {}
    for name, value in arguments.items():
        if name not in _OF_SETTINGS:
            shown = "the folder" if name == "folder" else f"--{name.replace('_', '-')}"
            own[shown] = None if value is None or value is False or value == [] else str(value)
    check_same(own, _SAME)


def check_same_settings(run: Any) -> None:
    """Raise an error in all processes unless their settings of a run are the same."""
    check_same(options.texts(run), _SAME)


def check_same_data(state: Mapping[str, Any]) -> None:
    """Raise an error in all processes unless the `state` of their readers is the same."""
    check_same({f"{key} of the data": str(value) for key, value in state.items()}, SAME_FILES)


def check_same_files(where: object, paths: Iterable[Path]) -> None:
    """Raise an error in all processes unless they find the same in the files at `where`.

    Paths may lead to other disks. A file that no process has is left to whoever reads it.
    """
    if not are_several():
        return
    files = list(paths)
    found = enumerate(zip(files, samples(files), strict=True), 1)
    own = {f"the hash of {f.name}, file {i} of {where},": s[:16] or None for i, (f, s) in found}
    check_same(own, SAME_FILES)


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
