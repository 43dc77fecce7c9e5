"""Arrays as files of `torch.distributed.checkpoint`, which is slow to import."""

from __future__ import annotations

import collections
import dataclasses
import errno
import itertools
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch.distributed import ProcessGroup
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from xfunc.errors import DamagedCheckpointError
from xfunc.sharding import manifest
from xfunc.sharding.archives import Archives
from xfunc.sharding.dcp_planners import Load, Save
from xfunc.sharding.local_parts import Target
from xfunc.sharding.manifest import EXTRA, MANIFEST, Sum
from xfunc.sharding.metadata_file import METADATA, read_metadata

FULL = 1 << 26  # bytes after which another file may begin
_SAVER = "xfunc"  # in the metadata: there is a manifest


def write(folder: Path, name: str, planner: Save, extra: bytes, group: ProcessGroup | None) -> None:
    """Write tensors into a new folder, and rename it once everything is on the disk.

    Args:
        folder: where to write.
        name: the final name of the folder.
        planner: selects the parts to write.
        extra: an additional file to write.
        group: the processes that write; None: all.
    """
    try:
        silence()
        writer = _Writer(folder, name, extra)
        dcp.save({}, storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:
        raise _cause(error) from None


def read(stored: Stored, targets: Mapping[str, Target]) -> dict[str, torch.Tensor]:
    """Read tensors of these names.

    Raises:
        OSError: the files cannot be read.
        DamagedCheckpointError: they differ from their checksums.
    """
    planner = Load(targets)
    try:
        silence()
        dcp.load({}, storage_reader=stored, planner=planner)
    except CheckpointException as error:
        raise _reading_failed(stored.folder, _cause(error)) from None
    for name in targets:
        if name not in planner.loaded:
            raise manifest.damaged(stored.folder, METADATA, f"lacks parts of {name}")
    return planner.loaded


def _reading_failed(folder: Path, cause: BaseException) -> BaseException:
    """The error for a failure in a process: bytes without a checksum may raise anything."""
    if isinstance(cause, FileNotFoundError):
        return manifest.damaged(folder, Path(cause.filename).name, "is missing")
    if isinstance(cause, (OSError, DamagedCheckpointError)) or not isinstance(cause, Exception):
        return cause
    result = manifest.damaged(folder, "", f"its files cannot be read ({cause})")
    result.__cause__ = cause
    return result


def silence() -> None:
    """Suppress torch's warning about each save and load without a process group.

    For good: `warnings.catch_warnings` would affect other threads, and restore the filters when
    they do not expect it. For the same reason this is called before a saving thread starts: a
    filter that the thread sets is undone when the main thread leaves a `catch_warnings`.
    """
    warnings.filterwarnings(
        "ignore", "torch.distributed is disabled", UserWarning, r"torch\.distributed\.checkpoint"
    )


def _cause(error: CheckpointException) -> BaseException:
    """The failure of a process."""
    return next(iter(error.failures.values()))[0]


# -- files ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Written(WriteResult):
    """A part in a file, and the file's description for the process that writes the manifest."""

    file: Sum


class _Writer(dcp.FileSystemWriter):
    """Writes files in each process, and in the first one the checkpoint's metadata.

    A process writes one file, and starts another at each top-level entry of the tree if the file is
    large, so that parameters can be read without the optimizer state.
    """

    def __init__(self, folder: Path, name: str, extra: bytes):
        super().__init__(folder)
        self._folder, self._name, self._extra = folder, name, extra

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=_SAVER)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        waiting = collections.deque(plan.items)
        written: list[WriteResult] = []
        for number in itertools.count():
            name = f"{plan.storage_data.prefix}{number}.distcp"
            written += self._write_file(name, waiting, planner)
            if not waiting:
                break
        done: Future[list[WriteResult]] = Future()
        done.set_result(written)
        return done

    def _write_file(
        self, name: str, waiting: collections.deque[WriteItem], planner: SavePlanner
    ) -> list[_Written]:
        """Write tensors to a file until it is full; returns their write results."""
        infos: list[tuple[WriteItem, _StorageInfo]] = []
        with manifest.SummedFile(self._folder / name) as file:
            while waiting:
                if infos and file.tell() >= FULL and _top(waiting[0]) != _top(infos[-1][0]):
                    break
                item, start = waiting.popleft(), file.tell()
                _save_tensor(planner.resolve_data(item), file)
                infos.append((item, _StorageInfo(name, start, file.tell() - start)))
            known = file.finish()
        return [_Written(item.index, info.length, info, known) for item, info in infos]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        sums = {
            r.storage_data.relative_path: r.file
            for written in cast("list[list[_Written]]", results)
            for r in written
        }
        for name, known in sums.items():
            path = self._folder / name
            if not path.exists() or path.stat().st_size != known.size:
                what = "is not on the disk of process 0: the processes must share the folder"
                raise FileNotFoundError(
                    errno.ENOENT, f"what another process wrote {what}", str(path)
                )
        sums[METADATA] = manifest.sum_of(self._folder / METADATA)
        sums[EXTRA] = manifest.write(self._folder / EXTRA, self._extra)
        manifest.write_manifest(self._folder, sums)
        manifest.sync(self._folder)
        self._folder.rename(self._folder.with_name(self._name))
        manifest.sync(self._folder.parent)


def _top(item: WriteItem) -> str:
    return item.index.fqn.partition(".")[0]


def _save_tensor(part: object, file: manifest.SummedFile) -> None:
    try:
        torch.save(part, file)
    except RuntimeError as error:  # torch's own error for a full disk is not informative.
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


class Stored(dcp.FileSystemReader):
    """The files of a checkpoint; each is checked before it is read.

    Attributes:
        folder: where they are.
        contents: the arrays in them by name; None: a Python object.

    Raises:
        FileNotFoundError: there is no checkpoint.
        DamagedCheckpointError: files are missing, cut off or changed.
    """

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.folder, self._archives = folder, Archives()
        self._sums = manifest.read_manifest(folder)
        if self._sums is not None:
            manifest.check(folder, METADATA, self._sums)
        self._metadata, self.contents = read_metadata(folder)
        saver = self._metadata.storage_meta and self._metadata.storage_meta.save_id
        if self._sums is None and saver == _SAVER:
            raise manifest.damaged(folder, MANIFEST, "is missing")

    def read_metadata(self, *_: object, **__: object) -> Metadata:
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        if self._sums is None:  # torch wrote them.
            return super().read_data(plan, planner)
        files: dict[str, list[tuple[_StorageInfo, ReadItem]]] = {}
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            files.setdefault(info.relative_path, []).append((info, item))
        for name in sorted(files):
            manifest.check(self.folder, name, self._sums)
            self._read_file(name, files[name], cast("Load", planner))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_file(
        self, name: str, items: list[tuple[_StorageInfo, ReadItem]], planner: Load
    ) -> None:
        place, part = -1, torch.empty(0)
        with open(self.folder / name, "rb") as file:
            for info, item in sorted(items, key=lambda pair: pair[0].offset):
                if info.offset != place:  # Several items may be in one part.
                    place, archive = info.offset, bytearray(info.length)
                    file.seek(place)
                    file.readinto(archive)
                    part = self._archives.tensor(archive)
                planner.give(item, part)
