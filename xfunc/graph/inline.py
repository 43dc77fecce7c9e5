"""`inline`: a graph that calls no functions.

A graph that is called becomes part of its caller, once for each call. The bodies of loops and
branches stay graphs, and calls in them become part of them.
"""

from __future__ import annotations

from collections.abc import Callable

from xfunc.graph import opcodes
from xfunc.graph.graph import Callee, Graph, moved, rerun
from xfunc.graph.node import Node


def inline(graph: Graph, keeps_call: Callable[[Node, Callee], bool]) -> Graph:
    """The graph without calls, and with loops and branches that call nothing.

    Args:
        graph: not changed.
        keeps_call: whether a call of a graph stays one.
    """
    return _Inliner(keeps_call).flat(graph)


class _Inliner:
    def __init__(self, keeps_call: Callable[[Node, Callee], bool]) -> None:
        self._keeps_call = keeps_call
        self._made: dict[Graph, Graph] = {}

    def flat(self, graph: Graph) -> Graph:
        if graph not in self._made:
            self._made[graph] = self._flat(graph)
        return self._made[graph]

    def _flat(self, graph: Graph) -> Graph:
        results: dict[Node, list[Node]] = {}  # of calls
        effects: list[Node] = []

        def change(n: Node, operands: tuple[Node, ...]) -> Node:
            if n.opcode == "get-tuple-element" and n.operands[0] in results:
                return results[n.operands[0]][n.params]
            if n.opcode == "call":
                callee = n.calls[0].graph
                if callee is not None and not self._keeps_call(n, callee):
                    results[n], acting = self.flat(callee).applied(operands, n.operation)
                    effects.extend(acting)
                    return n  # which nothing uses
            if n.opcode in opcodes.RUNS:
                return rerun(n, operands, self.flat)
            return moved(n, operands)

        made = graph.rewritten(change)
        effects += [e for e in made.effects if e not in results]
        if not results and made.outputs == graph.outputs and not effects:
            return graph
        return Graph(made.name, made.inputs, made.outputs, effects)
