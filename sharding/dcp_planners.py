"""Plans of the parts of arrays that `torch.distributed.checkpoint` writes and reads.

torch_xla 2.9 has planners too, which are not used: its `SPMDSavePlanner` silently omits every array
that is sharded over some devices and replicated over others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed._shard._utils import narrow_tensor_by_index
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
from xfunc.sharding.local_parts import Start, Target, assemble

Parts = Mapping[Start, torch.Tensor]


# Equal parts share one description, so that pickle writes it once and the metadata stays small.
@functools.lru_cache(4096)
def _chunk(start: Start, size: tuple[int, ...]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(start), torch.Size(size))


@functools.lru_cache(4096)
def _described(
    start: Start, size: tuple[int, ...], shape: tuple[int, ...], dtype: torch.dtype
) -> TensorWriteData:
    properties = TensorProperties(dtype=dtype)
    return TensorWriteData(_chunk(start, size), properties, torch.Size(shape))


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
    shape, dtype = target.shape, target.dtype
    kind = WriteItemType.TENSOR if target.placement is None else WriteItemType.SHARD
    return [
        WriteItem(MetadataIndex(name, data.chunk.offsets), kind, tensor_data=data)
        for start, size in dict(target.boxes()).items()
        if math.prod(size) or not math.prod(shape)
        for data in [_described(start, size, shape, dtype)]
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
        """The parts to read for a tensor; computed once for tensors that are sharded alike."""
        key = tuple([(c.offsets, c.sizes) for c in stored.chunks]), tuple(boxes.items())
        if key not in self._alike:
            chunks = [_chunk(start, size) for start, size in boxes.items()]
            self._alike[key] = create_read_items_for_chunk_list(name, stored, chunks)
        return [_renamed(item, name) for item in self._alike[key]]

    def give(self, read_item: ReadItem, stored: torch.Tensor) -> None:
        """Copy the requested slice of a stored part, which no other thread may change."""
        name, start = read_item.dest_index.fqn, read_item.dest_index.offset
        target = self._targets[name]
        assert start is not None
        if stored.shape == read_item.lengths == target.padded and not target.on_host:
            self._buffers.setdefault(name, {})[tuple(start)] = stored
        else:
            found = narrow_tensor_by_index(stored, read_item.storage_offsets, read_item.lengths)
            self.resolve_tensor(read_item).copy_(found)
        self.commit_tensor(read_item, stored)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        name, start = read_item.dest_index.fqn, read_item.dest_index.offset
        assert start is not None
        part = self._part(name, tuple(start))
        where = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return part[tuple(slice(i, i + n) for i, n in where)]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        name = read_item.dest_index.fqn
        self._missing[name] -= math.prod(read_item.lengths)
        if not self._missing[name]:
            self._finish(name)

    def _part(self, name: str, start: Start) -> torch.Tensor:
        """The part of a tensor that begins there; zeros at first."""
        parts, target = self._buffers.setdefault(name, {}), self._targets[name]
        if start not in parts:
            parts[start] = torch.zeros(target.padded, dtype=target.dtype)
        return parts[start]

    def _finish(self, name: str) -> None:
        target = self._targets[name]
        parts = {start: self._part(name, start) for start, _ in target.boxes()}
        self.loaded[name] = assemble(parts, target)
        del self._buffers[name]


def _renamed(item: ReadItem, name: str) -> ReadItem:
    """The same of another tensor."""
    to, at = item.dest_index, item.storage_index
    place = MetadataIndex(name, at.offset, at.index)
    same = (to.offset, to.index) == (at.offset, at.index)
    dest = place if same else MetadataIndex(name, to.offset, to.index)
    return ReadItem(item.type, dest, item.dest_offsets, place, item.storage_offsets, item.lengths)
