"""`save_checkpoint`, `load_checkpoint`: trees of sharded tensors as files."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from xfunc import tree
from xfunc.backends.active import runtime
from xfunc.backends.processes import agreed
from xfunc.core.locations import Location, user_location
from xfunc.errors import CheckpointWriteError, fail, format_error
from xfunc.sharding import manifest
from xfunc.sharding.checkpoint_tree import (
    Keys,
    Leaf,
    check_fits,
    check_outside,
    leaves_of,
    result_of,
    target_for,
    tensor_of,
)
from xfunc.sharding.local_parts import Start, Target, copy, fetch, target_of

if TYPE_CHECKING:
    from xfunc.sharding.storage import Stored


def save_checkpoint(path: str | os.PathLike[str], x: object, extra: object = None) -> None:
    """Write a tree of tensors to a new folder.

    Each part of a sharded tensor is written once, by a process that holds it; the tensor is never
    put together. Files are written to a folder ``<path>.partial``, which is renamed at the end: a
    folder named `path` is complete, and on the disk. Threads save in turn.

    Args:
        path: the folder, which must not exist.
        x: a tree of tensors and Python numbers.
        extra: JSON-serialisable data, stored with the tree for `load_extra`; with several
            processes, the first one's is used.

    Raises:
        CheckpointWriteError: it could not be written; partial files are removed.
        FileExistsError: `path` exists.
        TreeMismatchError: several processes were given different trees or paths.
        TypeError: a leaf is neither a tensor nor a number, or `extra` is not JSON-serialisable.
        PurityError: a tensor is traced.
        RuntimeError: a tensor was donated, or the call failed in another process.
    """
    with _saving:
        job, tensors = _job("save_checkpoint", path, x, extra)
        _write(job, lambda name: fetch(tensors[name], job.targets[name]), None)


def save_checkpoint_async(
    path: str | os.PathLike[str], x: object, extra: object = None
) -> Future[None]:
    """Like `save_checkpoint`, but write the files in a thread.

    It returns once the tensors are copied to the host, which waits for the program that computes
    them: from then on they may be donated or changed. One checkpoint is written at a time: a call
    waits for the previous one. At exit, Python waits for the last one.

    Args:
        path: the folder, which must not exist.
        x: a tree of tensors and Python numbers.
        extra: as for `save_checkpoint`.

    Returns:
        The save: ``.result()`` waits for it to finish, and raises the `CheckpointWriteError` if it
        failed; ``.done()`` says whether it has finished.

    Raises:
        FileExistsError, TreeMismatchError, TypeError, PurityError, RuntimeError: as for
            `save_checkpoint`.
    """
    from xfunc.sharding import storage

    global _pending
    with _saving:
        job, tensors = _job("save_checkpoint_async", path, x, extra)
        parts = {name: copy(tensor, job.targets[name]) for name, tensor in tensors.items()}
        group = _separate_group(distributed.group.WORLD) if distributed.is_initialized() else None
        storage.silence()
        _pending = pending = _thread.submit(_write, job, parts.__getitem__, group)
    return pending


def load_checkpoint(
    path: str | os.PathLike[str], target: object, *, partial: bool = False
) -> tree.PyTree:
    """Read the tree of tensors in a folder that `save_checkpoint` wrote.

    Only the parts of a sharded tensor that this process's devices hold are read, whatever its
    sharding was when it was saved.

    Args:
        path: the folder.
        target: a tree that describes the contents and their placement. Each leaf is a tensor (the
            result is on the CPU, or has that tensor's sharding), a `ShapeDtypeStruct` (the result
            is on the devices; replicated if it has no sharding) or a Python number. The tensors are
            not changed.
        partial: whether the checkpoint may hold more than the target, such as optimizer state
            besides the parameters; the rest is not read.

    Returns:
        A tree of the structure of `target`.

    Raises:
        FileNotFoundError: there is no checkpoint at `path`.
        DamagedCheckpointError: a file is missing, cut off or changed.
        TreeMismatchError: paths, shapes or dtypes differ from those of `target`; all are listed.
        ShardingError: a sharding does not fit its array, or its mesh is not of these devices.
        RuntimeError: the call failed in another process.
    """

    def prepare() -> tuple[object, tuple[list[Leaf], dict[str, Target], Stored]]:
        folder = _folder(path)
        check_outside("load_checkpoint", target)
        leaves = leaves_of(target, "target")
        targets = {leaf.name: target_for(leaf) for leaf in leaves}
        stored = _stored(folder)
        check_fits(stored.contents, leaves, targets, partial)
        return _said(folder, targets), (leaves, targets, stored)

    leaves, targets, stored = agreed("load_checkpoint", prepare, _count())
    from xfunc.sharding import storage

    loaded = storage.read(stored, targets)
    found = [result_of(leaf.value, loaded[leaf.name]) for leaf in leaves]
    return tree.unflatten(tree.structure(target), found)


def load_extra(path: str | os.PathLike[str]) -> Any:
    """The `extra` of a checkpoint, as JSON returns it: tuples become lists.

    Args:
        path: the folder.

    Returns:
        The data: dicts with strings as keys, lists, strings, numbers, booleans and None.

    Raises:
        FileNotFoundError: there is no checkpoint at `path`, or it has no `extra`.
        DamagedCheckpointError: a file is missing, cut off or changed.
    """
    folder = _folder(path)
    try:
        return manifest.read_extra(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise _nothing_at(folder) from None


# -- saving -----------------------------------------------------------------------------------

_thread = ThreadPoolExecutor(1, "xfunc-checkpoint")  # it starts with the first task
_pending: Future[None] | None = None
# The threads of a process save in turn, each from its check that the folder is new to the end.
_saving = threading.Lock()


@dataclasses.dataclass(frozen=True)
class _Job:
    """A save without its tensors, because a thread must not touch the devices.

    Attributes:
        targets: the placements of the tensors, by name.
        keys: their positions in the tree.
        at: the user's line, which a thread does not know.
    """

    folder: Path
    targets: Mapping[str, Target]
    keys: Mapping[str, Keys]
    extra: bytes
    at: Location | None


def _job(
    name: str, path: str | os.PathLike[str], x: object, extra: object
) -> tuple[_Job, dict[str, torch.Tensor]]:
    """Check the arguments of a save, and wait for the previous one."""

    def prepare() -> tuple[object, tuple[_Job, dict[str, torch.Tensor]]]:
        folder = _folder(path)
        check_outside(name, x)
        leaves = {leaf.name: leaf for leaf in leaves_of(x, "x")}
        tensors = {n: tensor_of(leaf, name) for n, leaf in leaves.items()}
        text = _json(extra)
        if _pending is not None:
            concurrent.futures.wait([_pending])
        if folder.exists():
            fail(
                FileExistsError,
                f"{folder} already exists",
                "save to a new folder, such as one for each step, or remove that one first.",
            )
        targets = {n: target_of(t) for n, t in tensors.items()}
        keys = {n: leaf.keys for n, leaf in leaves.items()}
        job = _Job(folder, targets, keys, text, user_location())
        return _said(folder, targets), (job, tensors)

    return agreed(name, prepare, _count())


def _count() -> int:
    """How many processes save and load together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def _said(folder: Path, targets: Mapping[str, Target]) -> dict[str, str] | None:
    """The values on which all processes must agree."""
    if _count() == 1:
        return None
    return {"the path": str(folder), **{name: str(target) for name, target in targets.items()}}


def _json(extra: object) -> bytes:
    try:
        return json.dumps(extra, indent=1).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            format_error(
                f"extra cannot be written as JSON: {error}",
                "give dicts, lists, strings, numbers and None; put tensors into the tree.",
            )
        ) from None


@functools.cache
def _separate_group(group: distributed.ProcessGroup | None) -> distributed.ProcessGroup | None:
    """The same processes as a separate group, because threads must not mix their collectives."""
    result: Any = distributed.new_group(distributed.get_process_group_ranks(group), backend="gloo")
    return result


def _write(
    job: _Job,
    parts: Callable[[str], Mapping[Start, torch.Tensor]],
    group: distributed.ProcessGroup | None,
) -> None:
    """Write a checkpoint; on failure, remove it completely."""
    from xfunc.sharding import storage
    from xfunc.sharding.dcp_planners import Save

    is_first = not distributed.is_initialized() or distributed.get_rank() == 0
    partial = _partial(job.folder)
    try:
        if is_first:
            shutil.rmtree(partial, ignore_errors=True)
        if distributed.is_initialized():
            distributed.barrier(group)
        planner = Save(job.targets, parts, job.keys)
        storage.write(partial, job.folder.name, planner, job.extra, group)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)  # In each: their disks may not be one.
        if not isinstance(error, OSError):
            raise
        raise CheckpointWriteError(
            format_error(
                f"the checkpoint {job.folder} could not be written: {error}",
                "free some space or fix the file system, and save again; earlier checkpoints "
                "are unchanged.",
                at=job.at,
            ),
            error.errno,
        ) from error


# -- files ------------------------------------------------------------------------------------


def _folder(path: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(path):
        fail(
            ValueError,
            f"{os.fspath(path)!r} is not a folder in a file system",
            "mount it, or save to a local folder and copy that.",
        )
    if runtime().process_count() > 1 and not distributed.is_initialized():
        fail(
            RuntimeError,
            "there are several processes, which must agree on who writes and reads what",
            "call xf.distributed.initialize() first, or on a TPU with torch_xla "
            "torch.distributed.init_process_group('gloo', init_method='xla://').",
        )
    return Path(path)


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def _stored(folder: Path) -> Stored:
    """The files of a checkpoint."""
    from xfunc.sharding import storage

    try:
        return storage.Stored(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise _nothing_at(folder) from None


def _nothing_at(folder: Path) -> FileNotFoundError:
    partial = _partial(folder)
    note = f"; {partial} is of a save that did not end" if partial.exists() else ""
    return FileNotFoundError(
        format_error(
            f"there is no checkpoint at {folder}{note}",
            "give the folder that save_checkpoint was given.",
        )
    )
