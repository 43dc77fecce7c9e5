"""Whole programs as HLO modules, in the form that is shown, compiled or exported.

NOTE [numbers in a whole program]: members of one group are sharded alike (`annotations.tie`), and
on the CPU the devices of a group meet under the channel of a collective. If two groups had the same
number, XLA would shard unrelated values alike; if these differed in dimensions, it would abort the
process. If two concurrent collectives had the same channel, a device of one could meet a device of
the other. So a function with any of these is written once per call, as XLA itself would copy it,
each time with new numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from xfunc.graph import opcodes
from xfunc.graph.build import CustomCall
from xfunc.graph.graph import Graph, Holding, is_pair
from xfunc.graph.node import Node
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo import write
from xfunc.hlo.attributes import NAME, attributes_of, with_attributes
from xfunc.hlo.spmd.annotations import is_automatic_tie
from xfunc.hlo.spmd.collectives import AXES
from xfunc.hlo.spmd.tiles import HloSharding
from xfunc.hlo.wire import integer_of, message_of
from xfunc.hlo.write import Style

_CHANNEL = 26


class WholeProgram(NamedTuple):
    """The parts of a whole program other than its graph.

    Attributes:
        meaning: returns, for the stamped name of an operation, its name with scopes, its file and
            its line; None for a name without a stamp.
        lines: whether instructions carry the user's files and lines.
        tiles: how each parameter is sharded; None if unspecified.
        keeps_automatic: whether to keep the ties that xfunc made automatically.
    """

    meaning: Callable[[str], tuple[str, str, int] | None]
    lines: bool = True
    tiles: Sequence[HloSharding | None] = ()
    keeps_automatic: bool = True


def written(graph: Graph, program: WholeProgram) -> bytes:
    """The serialised module of a whole program.

    Names that the user gave to values are left out. Scopes and lines replace the stamps. If nothing
    is sharded, ties have no effect and are left out.
    """
    return _Writer(graph, program).module(graph)


class _Writer(write.Writer):
    def __init__(self, graph: Graph, program: WholeProgram) -> None:
        super().__init__()
        self._meaning, self._lines, self._tiles = program.meaning, program.lines, program.tiles
        self._resolved: dict[bytes, bytes] = {}
        self._channels, self._groups = count(1), count(1)
        self._group = 0  # of the tie that is being written
        self._left_out = _never
        ties = Holding(_is_tie)
        if ties.inside(graph):
            is_sharded = any(map(_is_tiled, self._tiles)) or Holding(_says_sharding).inside(graph)
            if not (is_sharded and program.keeps_automatic):
                self._left_out = is_automatic_tie if is_sharded else _is_tie
                ties = Holding(lambda n: _is_tie(n) and not self._left_out(n))
        self._ties = ties  # those that are written

    def metadata_of(self, kind: str, origin: str) -> bytes:
        return write.metadata(kind, *self._meant(origin + kind))

    def was_read(self, metadata: bytes) -> bytes:
        if metadata not in self._resolved:
            found = pb.HloInstructionProto.FromString(metadata)
            self.was_embedded(found)
            self._resolved[metadata] = found.SerializeToString(deterministic=True)
        return self._resolved[metadata]

    def was_embedded(self, i: pb.HloInstructionProto) -> None:
        if i.HasField("metadata"):
            metadata = i.metadata
            metadata.op_name, file, line = self._meant(metadata.op_name)
            if file:
                metadata.source_file, metadata.source_line = file, line
        if i.opcode in opcodes.COLLECTIVES:
            i.channel_id = next(self._channels)

    def _meant(self, name: str) -> tuple[str, str, int]:
        name, file, line = self._meaning(name) or (name, "", 0)
        return name, file if self._lines else "", line

    def attributed(self, n: Node) -> bytes | None:
        if n.opcode == "copy" and NAME in attributes_of(n):
            return None
        if n.opcode in opcodes.COLLECTIVES:
            return _collective(n.params, n.more) + integer_of(_CHANNEL, next(self._channels))
        how = n.params
        if isinstance(how, CustomCall) and how.tied and self._group:
            how = how._replace(sharding=_in_group(how.sharding or b"", self._group))
            return write.params_of(n.opcode, how) + with_attributes(n.more, {})
        return super().attributed(n)

    def more_of(self, n: Node) -> bytes:
        return _unnamed(n.more) if n.more else b""

    def sharding_of(self, n: Node, place: int | None) -> bytes:
        tiles = self._tiles[place] if place is not None and self._tiles else None
        return _unnamed(write.sharding_of(n)) if tiles is None else message_of(40, tiles.wire)

    def is_passed(self, call: Node) -> bool:
        return self._left_out(call)

    def is_apart(self, called: Graph) -> bool:
        return super().is_apart(called) or is_pair(called) or self._ties.inside(called)

    def function(self, called: Graph, style: Style) -> int:
        self._group = next(self._groups) if is_pair(called) else 0
        return super().function(called, style)

    def callee(self, called: Any) -> Any:
        graph: Graph | None = getattr(called, "graph", None)
        return called if graph is None else graph


def _in_group(sharding: bytes, number: int) -> bytes:
    proto = pb.OpSharding.FromString(sharding)
    proto.shard_group_id = number
    return proto.SerializeToString(deterministic=True)


@functools.lru_cache(4096)
def _collective(params: bytes, more: bytes) -> bytes:
    """The fields of a collective, without its channel and the axes along which it communicates."""
    found = pb.HloInstructionProto.FromString(params + more)
    found.ClearField("channel_id")
    found.frontend_attributes.map.pop(AXES, None)
    if not found.frontend_attributes.map:
        found.ClearField("frontend_attributes")
    return found.SerializeToString(deterministic=True)


@functools.lru_cache(4096)
def _unnamed(more: bytes) -> bytes:
    """`Node.more` without a name that the user gave to the value, and without axes."""
    attributes = pb.HloInstructionProto.FromString(more).frontend_attributes.map
    left = {k: v for k, v in attributes.items() if k not in (NAME, AXES)}
    return more if len(left) == len(attributes) else with_attributes(more, left)


def _says_sharding(n: Node) -> bool:
    how = n.params
    if isinstance(how, CustomCall):
        return how.sharding is not None and not how.tied and _is_divided(how.sharding)
    return bool(n.more) and _is_sharded(n.more)


def _is_tie(n: Node) -> bool:
    if n.opcode != "call":
        return False
    graph: Graph | None = n.calls[0].graph
    return graph is not None and is_pair(graph)


def _never(n: Node) -> bool:
    return False


@functools.lru_cache(4096)
def _is_sharded(more: bytes) -> bool:
    found = pb.HloInstructionProto.FromString(more)
    return found.HasField("sharding") and _divides(found.sharding)


@functools.lru_cache(4096)
def _is_divided(sharding: bytes) -> bool:
    return _divides(pb.OpSharding.FromString(sharding))


def _is_tiled(tiles: HloSharding | None) -> bool:
    return tiles is not None and not tiles.is_replicated


def _divides(sharding: pb.OpSharding) -> bool:
    """Whether a sharding is more than to be whole on each device."""
    if sharding.type == pb.OpSharding.TUPLE:
        return any(map(_divides, sharding.tuple_shardings))
    return not sharding.is_shard_group and sharding.type != pb.OpSharding.REPLICATED
