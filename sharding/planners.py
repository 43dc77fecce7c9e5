"""Which parts of which arrays `torch.distributed.checkpoint` writes and reads.

torch_xla 2.9 has planners too, which are not used: its `SPMDSavePlanner` silently omits every array
that is sharded over some devices and replicated over others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
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

from xfunc.sharding.checkpoint_tree import Keys
from xfunc.sharding.parts import Start, Target, assemble

Parts = Mapping[Start, torch.Tensor]


def _chunk(start: Start, size: tuple[int, ...]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(start), torch.Size(size))


class Save(dcp.DefaultSavePlanner):
    """Writes each part of each tensor once.

    Args:
        targets: the tensors by name.
        parts: the parts of a tensor that this process holds.
        keys: the positions of the tensors in the tree, for torch's tools that rebuild it.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        parts: Callable[[str], Parts],
        keys: Mapping[str, Keys],
    ):
        super().__init__()
        self._targets, self._parts, self._keys = targets, parts, keys
        self._current: tuple[str, Parts] | None = None

    def set_up_planner(
        self, state_dict: object, storage_meta: object = None, is_coordinator: bool = False
    ) -> None:
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        items = [item for name, t in self._targets.items() for item in _writes(name, t)]
        self.plan = SavePlan(items, planner_data=dict(self._keys))
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        name, start = write_item.index.fqn, write_item.index.offset
        if self._current is None or self._current[0] != name:
            self._current = name, self._parts(name)
        assert start is not None
        return self._current[1][tuple(start)]


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


class Load(dcp.DefaultLoadPlanner):
    """Reads the parts that this process holds, and assembles each tensor once it has all of them.

    Attributes:
        loaded: the tensors by name.
    """

    def __init__(self, targets: Mapping[str, Target]):
        super().__init__()
        self._targets = targets
        self._buffers: dict[str, dict[Start, torch.Tensor]] = {}
        self._missing: dict[str, int] = {}
        self._alike: dict[Hashable, list[ReadItem]] = {}
        self.loaded: dict[str, torch.Tensor] = {}

    def set_up_planner(
        self, state_dict: object, metadata: Metadata | None = None, is_coordinator: bool = False
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
            stored = self.metadata.state_dict_metadata[name]
            assert isinstance(stored, TensorStorageMetadata)  # `check_fits` ensures this.
            reads += self._reads(name, stored, boxes)
        return LoadPlan(reads)

    def _reads(
        self, name: str, stored: TensorStorageMetadata, boxes: dict[Start, tuple[int, ...]]
    ) -> list[ReadItem]:
        """What to read for a tensor; found once for those that are divided alike."""
        key = tuple([(c.offsets, c.sizes) for c in stored.chunks]), tuple(boxes.items())
        if key not in self._alike:
            chunks = [_chunk(start, size) for start, size in boxes.items()]
            self._alike[key] = create_read_items_for_chunk_list(name, stored, chunks)
        return [
            ReadItem(
                item.type,
                MetadataIndex(name, item.dest_index.offset, item.dest_index.index),
                item.dest_offsets,
                MetadataIndex(name, item.storage_index.offset, item.storage_index.index),
                item.storage_offsets,
                item.lengths,
            )
            for item in self._alike[key]
        ]

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
            padded = t.padded
            made = {start: torch.zeros(padded, dtype=t.dtype) for start, _ in t.boxes()}
            self._buffers[name] = made
        return self._buffers[name]

    def _finish(self, name: str) -> None:
        self.loaded[name] = assemble(self._parts(name), self._targets[name])
        del self._buffers[name]
