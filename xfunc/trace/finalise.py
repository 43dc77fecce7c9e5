"""The final passes over a module before it is shown, compiled or exported."""

from __future__ import annotations

from collections.abc import Sequence

from xfunc import config
from xfunc.hlo import Module
from xfunc.hlo.contents import Contents
from xfunc.hlo.edit import entry_of
from xfunc.hlo.passes.branches import keep_branches
from xfunc.hlo.passes.masks import convert_masks
from xfunc.hlo.passes.names import strip_names
from xfunc.hlo.spmd.channels import renumber_channels
from xfunc.hlo.spmd.groups import settle_groups
from xfunc.hlo.spmd.tiles import Tiles
from xfunc.trace import scopes


def finished(module: Module, lines: bool = True, tiles: Sequence[Tiles | None] = ()) -> Module:
    """A module of a whole program, in the form that is compiled.

    Scopes and lines replace the stamps; shard groups and channels of collectives are numbered.

    Args:
        module: not modified.
        lines: whether instructions carry the user's files and lines.
        tiles: how each parameter is sharded; None if unspecified.
    """
    whole = scopes.resolve(module, lines)  # a copy
    strip_names(whole.proto)
    contents = Contents(whole.proto)
    if any(tiles):
        for i in contents.of(entry_of(whole.proto), ("parameter",)):
            if (divided := tiles[i.parameter_number]) is not None:
                divided.write(i.sharding)
    convert_masks(contents)
    keep_branches(contents)
    settle_groups(contents, config.shard_as_in_scan)
    renumber_channels(contents)
    return Module(whole.proto)
