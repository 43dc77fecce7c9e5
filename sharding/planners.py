"""Trees of sharded arrays as files of `torch.distributed.checkpoint`, which is slow to import.

torch_xla 2.9 has planners for these files too, which are not used: its `SPMDSavePlanner` leaves out
every array that is divided over some devices and repeated over others, without an error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from xfunc.avals import ShapeDtypeStruct
from xfunc.errors import report
from xfunc.locations import user_location

from .parts import Start, Target, assemble, fetch, target_of

Keys = tuple[str | int, ...]


def write(folder: Path, tensors: Mapping[str, torch.Tensor], keys: Mapping[str, Keys]) -> None:
    """Write tensors by name; `keys` are their places in the tree, for torch's own tools."""
    with warnings.catch_warnings():
        _silence()
        try:
            storage = dcp.FileSystemWriter(folder)
            dcp.save(dict(tensors), storage_writer=storage, planner=_Save(keys))
        except CheckpointException as error:
            raise _cause(error) from None


def contents(folder: Path) -> dict[str, ShapeDtypeStruct | None]:
    """The names in the files of a folder; None: of a Python object.

    Raises:
        OSError: the files cannot be read.
        ValueError: they are damaged.
    """
    try:
        found = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        return {
            name: ShapeDtypeStruct(tuple(m.size), m.properties.dtype)
            if isinstance(m, TensorStorageMetadata)
            else None
            for name, m in found.items()
        }
    except OSError:
        raise
    except Exception as error:  # Unpickling bytes that are anything raises anything.
        raise _damaged(folder, error) from error


def read(folder: Path, targets: Mapping[str, Target]) -> dict[str, torch.Tensor]:
    """Read tensors of these names.

    Raises:
        OSError: the files cannot be read.
        ValueError: they are damaged.
    """
    planner = _Load(targets)
    with warnings.catch_warnings():
        _silence()
        try:
            dcp.load({}, storage_reader=dcp.FileSystemReader(folder), planner=planner)
        except CheckpointException as error:
            cause = _cause(error)
            missing = isinstance(cause, FileNotFoundError)
            if missing or (isinstance(cause, Exception) and not isinstance(cause, OSError)):
                raise _damaged(folder, cause) from cause
            raise cause from None
    for name in targets:
        if name not in planner.loaded:
            raise _damaged(folder, f"parts of {name} are missing")
    return planner.loaded


def _silence() -> None:
    """No warnings of torch's own: that there is one process, that its storage class is old."""
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")


def _cause(error: CheckpointException) -> BaseException:
    """What a process failed with."""
    return next(iter(error.failures.values()))[0]


def _damaged(folder: Path, why: object) -> ValueError:
    text = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
    return ValueError(
        report(
            f"the checkpoint at {folder} is damaged ({text})",
            "use another one: files of this one are missing, cut off or changed.",
            at=user_location(),
        )
    )


def _chunk(start: Start, size: tuple[int, ...]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(start), torch.Size(size))


class _Save(dcp.DefaultSavePlanner):
    """Writes each part of each tensor once.

    Args:
        keys: the path of each name, for torch's tools that build the tree again.
    """

    def __init__(self, keys: Mapping[str, tuple[str | int, ...]]):
        super().__init__()
        self._keys = keys
        self._fetched: tuple[str, dict[Start, torch.Tensor]] = ("", {})

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict, self.is_coordinator = state_dict, is_coordinator
        self._targets = {name: target_of(t) for name, t in state_dict.items()}

    def create_local_plan(self) -> SavePlan:
        items = [item for name, t in self._targets.items() for item in _writes(name, t)]
        self.plan = SavePlan(items, planner_data=dict(self._keys))
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        name, start = write_item.index.fqn, write_item.index.offset
        if self._fetched[0] != name:  # One tensor at a time is on the host.
            self._fetched = name, fetch(self.state_dict[name], self._targets[name])
        assert start is not None
        return self._fetched[1][tuple(start)]


def _writes(name: str, target: Target) -> list[WriteItem]:
    properties = TensorProperties(dtype=target.dtype)
    kind = WriteItemType.TENSOR if target.placement is None else WriteItemType.SHARD
    return [
        WriteItem(
            MetadataIndex(name, torch.Size(start)),
            kind,
            tensor_data=TensorWriteData(_chunk(start, size), properties, torch.Size(target.shape)),
        )
        for start, size in dict(target.boxes()).items()
        if math.prod(size) or not math.prod(target.shape)
    ]


class _Load(dcp.DefaultLoadPlanner):
    """Reads the parts that this process holds, and puts each tensor together when it has all.

    Attributes:
        loaded: the tensors by name.
    """

    def __init__(self, targets: Mapping[str, Target]):
        super().__init__()
        self._targets = targets
        self._buffers: dict[str, dict[Start, torch.Tensor]] = {}
        self._missing: dict[str, int] = {}
        self.loaded: dict[str, torch.Tensor] = {}

    def set_up_planner(
        self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False
    ) -> None:
        self.metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        reads: list[ReadItem] = []
        for name, target in self._targets.items():
            boxes = dict(target.boxes())
            self._missing[name] = sum(map(math.prod, boxes.values()))
            if not self._missing[name]:
                self._finish(name)
                continue
            chunks = [_chunk(start, size) for start, size in boxes.items()]
            stored = self.metadata.state_dict_metadata[name]
            reads += create_read_items_for_chunk_list(name, stored, chunks)
        return LoadPlan(reads)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        name, start = read_item.dest_index.fqn, read_item.dest_index.offset
        assert start is not None
        part = self._parts(name)[tuple(start)]
        where = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return part[tuple(slice(i, i + n) for i, n in where)]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        name = read_item.dest_index.fqn
        self._missing[name] -= math.prod(read_item.lengths)
        if not self._missing[name]:
            self._finish(name)

    def _parts(self, name: str) -> dict[Start, torch.Tensor]:
        if name not in self._buffers:
            t = self._targets[name]
            made = {start: torch.zeros(t.padded, dtype=t.dtype) for start, _ in t.boxes()}
            self._buffers[name] = made
        return self._buffers[name]

    def _finish(self, name: str) -> None:
        self.loaded[name] = assemble(self._parts(name), self._targets[name])
        del self._buffers[name]
