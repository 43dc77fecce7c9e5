"""Graphs and modules with inlined functions.

Some calls remain: those of shard groups (`annotations.tie`: see the note there); those of a manual
region (`shard_map`): one device's shard inside it is not a value outside; composites, which a
target may replace as a whole; and calls that XLA is told not to inline (`passes.barriers`).
"""

from __future__ import annotations

from xfunc.graph.composite import operation_of
from xfunc.graph.graph import Callee, Graph, is_pair
from xfunc.graph.inline import inline
from xfunc.graph.node import Node
from xfunc.graph.simplify import simplify
from xfunc.hlo.attributes import attributes_of
from xfunc.hlo.module import Module
from xfunc.hlo.spmd.annotations import MANUAL_BODY, is_region_graph
from xfunc.hlo.write import write


def inlined(graph: Graph) -> Graph:
    """The graph without calls, except those that must remain."""
    return inline(graph, _stays)


def _stays(call: Node, callee: Callee) -> bool:
    assert isinstance(callee, Graph)
    if attributes_of(call).get("inlineable") == "false":
        return True
    if callee.name.startswith(MANUAL_BODY) or operation_of(callee.name) is not None:
        return True
    return is_pair(callee) or is_region_graph(callee)


def inline_calls(module: Module) -> Module:
    """The module without calls, except those that must remain; unchanged if no graph can express
    it.
    """
    graph = module.graph
    return module if graph is None else Module.from_bytes(write(inlined(graph)))


def flattened(module: Module) -> Module:
    """The module of `inline_calls`, simplified, loops and branches included."""
    graph = module.graph
    if graph is None:
        return module
    return Module.from_bytes(write(flat(graph)))


def flat(graph: Graph) -> Graph:
    """The graph of `inlined`, simplified, loops and branches included."""
    return simplify(inlined(graph), bodies=True)
