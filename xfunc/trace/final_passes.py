"""The final passes over a module before it is shown, compiled or exported."""

from __future__ import annotations

from collections.abc import Sequence

from xfunc import config
from xfunc.graph.graph import Graph
from xfunc.hlo import Module
from xfunc.hlo import hlo_pb2 as pb
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import entry_of
from xfunc.hlo.passes.names import strip_names
from xfunc.hlo.spmd.channels import renumber_channels
from xfunc.hlo.spmd.groups import settle_groups
from xfunc.hlo.spmd.tiles import Tiles
from xfunc.hlo.write import write_resolved
from xfunc.trace import scopes


def finished(
    function: Graph | Module, lines: bool = True, tiles: Sequence[Tiles | None] = ()
) -> Module:
    """The module of a whole program, in the form that is compiled.

    Scopes and lines replace the stamps; shard groups and channels of collectives are numbered.

    Args:
        function: not modified.
        lines: whether instructions carry the user's files and lines.
        tiles: how each parameter is sharded; None if unspecified.
    """
    whole = pb.HloModuleProto()
    if isinstance(function, Graph):
        data, is_resolved, is_plain = write_resolved(function, scopes.meaning, lines)
        whole.ParseFromString(data)
        if is_resolved and is_plain and not any(tiles):
            return Module(whole)  # which no pass below would change
    else:
        whole.CopyFrom(function.proto)
        is_resolved = False
    if not is_resolved:
        scopes.resolve(whole, lines)
    strip_names(whole)
    contents = Contents(whole)
    if any(tiles):
        for i in contents.of(entry_of(whole), ("parameter",)):
            if (divided := tiles[i.parameter_number]) is not None:
                divided.write(i.sharding)
    settle_groups(contents, config.shard_as_in_scan)
    renumber_channels(contents)
    return Module(whole)
