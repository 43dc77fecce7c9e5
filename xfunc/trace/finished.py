"""Whole programs, in the form that is shown, compiled or exported."""

from __future__ import annotations

from collections.abc import Sequence

from xfunc import config
from xfunc.graph.graph import Graph
from xfunc.hlo import Module
from xfunc.hlo.final import WholeProgram, written
from xfunc.hlo.spmd.tiles import HloSharding
from xfunc.trace import scopes


def finalize(graph: Graph, lines: bool = True, tiles: Sequence[HloSharding | None] = ()) -> Module:
    """The module of a whole program, in the form that is compiled: see `xfunc.hlo.final`.

    Args:
        graph: it.
        lines: whether instructions carry the user's files and lines.
        tiles: how each parameter is sharded; None if unspecified.
    """
    how = WholeProgram(scopes.meaning, lines, tiles, config.shard_as_in_scan)
    return Module.from_bytes(written(graph, how))
